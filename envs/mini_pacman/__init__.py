"""Mini-Pacman: eat everything and stay alive, with a window of five by five cells."""

from .env import MiniPacman, MiniPacmanBatch

__all__ = ["MiniPacman", "MiniPacmanBatch"]
