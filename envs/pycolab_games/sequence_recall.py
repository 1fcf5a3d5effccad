"""Sequence Recall on the pycolab engine: lights in the backdrop, a mask over those that are off, a player in a pen.

Update order P, %, M, notes, all in one group. The mask controls the phases of the game; a change in one frame takes
effect in the next.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from pycolab.engine import Engine
from pycolab.prefab_parts.sprites import MazeWalker
from pycolab.things import Backdrop, Drape

from . import art

BOARD = (
    "#####################",
    "#        222        #",
    "#      2222222      #",
    "#      2222222      #",
    "#      2222222      #",
    "#        222        #",
    "#  111         333  #",
    "#1111111 %%% 3333333#",
    "#1111111 %P% 3333333#",
    "#1111111 %%% 3333333#",
    "#  111         333  #",
    "#        444        #",
    "#      4444444      #",
    "#      4444444      #",
    "#      4444444      #",
    "#        444        #",
    "#####################",
)
LIGHTS = "1234"
NOTES = "abcd"  # Drapes that show, for each light, its positions in the sequence on the upper wall (for the twin)
REPAINT = {"%": "#"} | dict(zip(NOTES, LIGHTS, strict=True))
UP, DOWN, LEFT, RIGHT = range(4)


def make_game(level: dict[str, Any], parameters: Any) -> Engine:
    """Make a game of a level `{"sequence"}`; the parameters are attributes named as those of SequenceRecall."""
    board = art.board(BOARD)
    scenery = np.where(art.cells(board, "P%"), ord(" "), board).astype(np.uint8)
    game = Engine(*board.shape)
    game.set_prefilled_backdrop(" #" + LIGHTS, scenery, Backdrop)
    game.add_sprite("P", (8, 10), Player)
    game.add_prefilled_drape("%", art.cells(board, "%"), Pen)
    sequence = [LIGHTS[light] for light in level["sequence"]]
    game.add_drape("M", Mask)
    for character in NOTES:
        game.add_drape(character, Note)
    game.set_z_order(f"M{NOTES}P%")
    game.the_plot["deadline"] = parameters.timeout_frames if parameters.timeout_frames > 0 else np.inf
    game.the_plot.update({"parameters": parameters, "sequence": sequence, "free": False})
    game.the_plot["noted"] = sequence if parameters.show_sequence else []
    return game


class Player(MazeWalker):
    """Player that walks while it is free; also applies the cost of every frame and the time limit."""

    def __init__(self, corner: Any, position: Any, character: str) -> None:
        super().__init__(corner, position, character, impassable="#" + NOTES, confined_to_board=True)

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        steps = {UP: self._north, DOWN: self._south, LEFT: self._west, RIGHT: self._east}
        if the_plot["free"] and actions in steps:
            steps[actions](board, the_plot)
        if the_plot.frame >= the_plot["deadline"]:
            the_plot.terminate_episode()
        elif the_plot.frame > 1:
            the_plot.add_reward(-0.005)


class Pen(Drape):
    """Pen around the player until it is free. It is only decoration and does not keep the player in position."""

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        if the_plot["free"]:
            self.curtain[:] = False


class Note(Drape):
    """Note on the upper wall that shows at which positions of the sequence a light must still be entered."""

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        self.curtain[:] = False
        noted, length = the_plot["noted"], len(the_plot["sequence"])
        width = (self.curtain.shape[1] - 2) // length
        for position, light in enumerate(noted, start=length - len(noted)):
            first = 1 + position * width
            self.curtain[0, first : first + width] |= light == REPAINT[self.character]


class Mask(Drape):
    """Mask that hides the lights that are off and controls the phases of the game: one step of `_phases` per frame."""

    _steps: Iterator[None] | None = None

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        self._steps = self._steps or self._phases(backdrop.curtain, things["P"], the_plot)
        next(self._steps)

    def _phases(self, lights: Any, player: Player, the_plot: Any) -> Iterator[None]:
        """Run the demonstration, then the player's turn. Every `yield` ends a frame."""
        sequence, values = the_plot["sequence"], the_plot["parameters"]
        for light in sequence:
            self._only("", lights)
            yield from [None] * max(2, values.demo_light_off_frames)
            self._only(light, lights)
            yield from [None] * max(2, values.demo_light_on_frames)
        self._only("", lights)
        yield from [None] * (max(2, values.pause_frames) - 1)
        the_plot["free"] = True
        yield
        for position, requested in enumerate(sequence):
            while (light := chr(lights[player.position])) not in LIGHTS:
                yield
            self._only(light, lights)
            the_plot["noted"] = the_plot["noted"][1:]
            if light == requested:
                the_plot.add_reward(1.0)
            if position + 1 == len(sequence):
                the_plot["free"] = False
            yield
            while the_plot["free"] and chr(lights[player.position]) in LIGHTS:
                yield
            if the_plot["free"]:
                self._only("", lights)
                yield
        the_plot["deadline"] = the_plot.frame + 2
        while True:
            yield

    def _only(self, lit: str, lights: Any) -> None:
        """Hide all lights except `lit` ("": all)."""
        self.curtain[:] = art.cells(lights, LIGHTS) & (lights != ord(lit or " "))
