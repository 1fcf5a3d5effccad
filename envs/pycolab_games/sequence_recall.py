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
NOTES = "abcd"
"""Drapes that show, for each light, its positions in the sequence on the upper wall (for the twin)."""
REPAINT = {"%": "#"} | dict(zip(NOTES, LIGHTS, strict=True))
UP, DOWN, LEFT, RIGHT = range(4)


def make_game(level: dict[str, Any], parameters: Any) -> Engine:
    """Make a game of a level `{"sequence"}`; the parameters are attributes named as those of SequenceRecall."""
    board = art.board(BOARD)
    scenery = np.where(art.cells(board, "P") | art.cells(board, "%"), ord(" "), board).astype(np.uint8)
    game = Engine(*board.shape)
    game.set_prefilled_backdrop(" #" + LIGHTS, scenery, Backdrop)
    game.add_sprite("P", art.position(board, "P"), Player)
    game.add_prefilled_drape("%", art.cells(board, "%"), Pen)
    sequence = [LIGHTS[light] for light in level["sequence"]]
    frames = parameters.demo_light_off_frames, parameters.demo_light_on_frames, parameters.pause_frames
    game.add_drape("M", Mask, sequence, *(max(2, count) for count in frames))
    for character in NOTES:
        game.add_drape(character, Note, REPAINT[character], parameters.sequence_length)
    game.set_z_order(f"M{NOTES}P%")
    game.the_plot["deadline"] = parameters.timeout_frames if parameters.timeout_frames > 0 else np.inf
    game.the_plot["free"] = False
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

    def __init__(self, curtain: Any, character: str, light: str, sequence_length: int) -> None:
        super().__init__(curtain, character)
        self._light, self._length = light, sequence_length
        self._width = (curtain.shape[1] - 2) // sequence_length

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        self.curtain[:] = False
        noted = the_plot["noted"]
        for position, light in enumerate(noted, start=self._length - len(noted)):
            first = 1 + position * self._width
            self.curtain[0, first : first + self._width] |= light == self._light


class Mask(Drape):
    """Mask that hides the lights that are off and controls the phases of the game: one step of `_phases` per frame."""

    def __init__(self, curtain: Any, character: str, sequence: list[str], *frames: int) -> None:
        super().__init__(curtain, character)
        self._sequence = sequence
        self._off_frames, self._on_frames, self._pause_frames = frames
        self._steps: Iterator[None] | None = None

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        self._steps = self._steps or self._phases(backdrop.curtain, things["P"], the_plot)
        next(self._steps)

    def _phases(self, lights: Any, player: Player, the_plot: Any) -> Iterator[None]:
        """Run the demonstration, then the player's turn. Every `yield` ends a frame."""
        for light in self._sequence:
            self._only(None, lights)
            yield from wait(self._off_frames)
            self._only(light, lights)
            yield from wait(self._on_frames)
        self._only(None, lights)
        yield from wait(self._pause_frames - 1)
        the_plot["free"] = True
        yield
        for position, requested in enumerate(self._sequence):
            while (light := chr(lights[player.position])) not in LIGHTS:
                yield
            self._only(light, lights)
            the_plot["noted"] = the_plot["noted"][1:]
            if light == requested:
                the_plot.add_reward(1.0)
            if position + 1 == len(self._sequence):
                the_plot["free"] = False
            yield
            while the_plot["free"] and chr(lights[player.position]) in LIGHTS:
                yield
            if the_plot["free"]:
                self._only(None, lights)
                yield
        the_plot["deadline"] = the_plot.frame + 2
        while True:
            yield

    def _only(self, lit: str | None, lights: Any) -> None:
        """Hide all lights except `lit`."""
        self.curtain[:] = False
        for light in LIGHTS:
            if light != lit:
                self.curtain[:] |= art.cells(lights, light)


def wait(frames: int) -> Iterator[None]:
    """Wait for a number of frames."""
    for _ in range(frames):
        yield
