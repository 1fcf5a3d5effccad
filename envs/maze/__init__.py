"""Maze exploration: find an invisible goal, then return to it again and again."""

from .env import Maze, MazeBatch

__all__ = ["Maze", "MazeBatch"]
