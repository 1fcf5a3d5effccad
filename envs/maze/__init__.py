"""Maze exploration: find an invisible goal, then return to it repeatedly."""

from .env import Maze, MazeBatch

__all__ = ["Maze", "MazeBatch"]
