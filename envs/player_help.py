"""A world explained to a person who plays it in a terminal."""

from typing import NamedTuple

from .drawing import Colour

WIDTH, LEGEND_WIDTH, HELP_LINES = 78, 34, 18
"""Most characters in a line of text and in one of the legend, and most lines in all, so that 80x24 holds them."""


class PlayerHelp(NamedTuple):
    """Texts of one world, lines of at most WIDTH characters; the legend's have at most LEGEND_WIDTH."""

    goal: tuple[str, str]
    """Two lines: what to do, and what makes it hard."""
    rules: tuple[str, ...]
    """Rules that a player must know besides."""
    symbols: tuple[tuple[Colour, str], ...]
    """Colours on the screen and what they stand for."""
    rewards: tuple[str, ...]
    """Events and what they are worth, with the parameters that this world has."""
