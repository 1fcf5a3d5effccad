"""Maze exploration: find an invisible goal, and from then on know the way back to it."""

from .env import Maze, MazeBatch

__all__ = ["Maze", "MazeBatch"]
