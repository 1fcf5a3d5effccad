"""The T-maze on the pycolab engine: a player with a window onto a large map; every drape shows a part of the map.

The map is an array of characters; the board is the window of 7 x 11 cells. The cue is fixed to the window.
Update groups: the cue (which also keeps time), the player, then everything that belongs to the map.
"""

from typing import Any

import numpy as np
from pycolab.engine import Engine
from pycolab.things import Backdrop, Drape, Sprite

from ..arrays import Array
from . import art

ROOM = ("#####", "#ttt#", "#   #", "#   #", "#####")
LIMBO = ("##   #   ##", "  ## # ##  ", "    ###    ", "##### #####", "    ###    ", "  ## # ##  ", "##   #   ##")
CUES = ("QQ         ", "         QQ")
REPAINT = {"*": "#", "t": "~", "l": "~", "r": "~"}
WORLD_ROWS, WORLD_COLS = 77, 191
VIEW_ROWS, VIEW_COLS = 7, 11
REACHES = (10, 15, 22, 35, 56, 92)
UP, DOWN, LEFT, RIGHT = range(4)
STEPS = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}


def make_game(level: dict[str, Any], parameters: Any) -> Engine:
    """Make a game of a level `{"goal", "speckle"}`; the parameters are attributes named as those of TMaze. Raises
    ValueError if `endless`."""
    if parameters.endless:
        raise ValueError("endless is True; allowed in the pycolab game: False")
    environment = draw_environment(parameters.difficulty, parameters.half_width)
    game = Engine(VIEW_ROWS, VIEW_COLS)
    game.set_prefilled_backdrop(" ", np.full((VIEW_ROWS, VIEW_COLS), ord(" "), np.uint8), Backdrop)
    game.update_group("1 the cue and the clock")
    cue = np.zeros((VIEW_ROWS, VIEW_COLS), np.bool_)
    cue[4:7] = art.cells(art.board([CUES[level["goal"]]]), "Q")
    game.add_prefilled_drape("Q", cue, Cue)
    game.update_group("2 the player")
    game.add_sprite("P", (3, 5), Player)
    game.update_group("3 the environment")
    game.add_drape("#", Scenery, art.cells(environment, "#"))
    game.add_drape("*", Scenery, art.cells(environment, "*") & np.asarray(level["speckle"]))
    for character, kind in (("t", Teleporter), ("l", Goal), ("r", Goal)):
        game.add_drape(character, kind, art.cells(environment, character))
    game.set_z_order("*#tlrQP")
    game.the_plot["deadline"] = parameters.timeout_frames if parameters.timeout_frames > 0 else np.inf
    game.the_plot.update({"parameters": parameters, "goal": "lr"[level["goal"]]})
    return game


def draw_environment(difficulty: int, half_width: int | None) -> Array:
    """Draw the map: characters uint8 [77, 191] of room, limbo and one maze, with '*' wherever speckle is possible."""
    middle = 94 if difficulty < 4 else 95
    reach = REACHES[difficulty] if half_width is None else half_width
    inner, gap = 2 * reach - 1, 2 * reach - 9
    maze = [
        "#" * (inner + 2),
        f"#{' ' * inner}#",
        f"#{' ' * inner}#",
        f"#   #{'#' * gap}#   #" if gap > 0 else "#   #   #",
        *[f"#   #{'*' * gap}#   #" if gap > 0 else "#   #   #"] * 2,
        f"#lll#{'*' * gap}#rrr#" if gap > 0 else "#lll#rrr#",
        f"#####{'*' * gap}#####" if gap > 0 else "#########",
    ]
    environment = np.full((WORLD_ROWS, WORLD_COLS), ord(" "), np.uint8)
    environment[10:] = ord("*")
    for lines, top, left in ((ROOM, 3, 92), (LIMBO, 1, 135), (maze, 12 + 11 * difficulty, middle - reach)):
        environment[top : top + len(lines), left : left + len(lines[0])] = art.board(lines)
    return environment


class Cue(Drape):
    """Cue that shows the side of the goal in the room; also applies the cost of every frame and the time limit."""

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        if "departure" in the_plot and not the_plot["parameters"].cue_after_teleport:
            self.curtain[:] = False
        if the_plot.frame >= the_plot["deadline"]:
            the_plot.terminate_episode()
        elif the_plot.frame > 1:
            the_plot.add_reward(-0.001)


class Player(Sprite):
    """Player that walks on the map; the teleporter takes it to limbo and then to the maze.

    The window follows every step, unless it would leave the map; then the player moves inside the window,
    off-center. The original game moves not the player but the map under the window, so that the map's edges move;
    beyond an edge, it shows the opposite one. `_first_col` is the resulting left edge.
    """

    def __init__(self, corner: Any, position: Any, character: str) -> None:
        super().__init__(corner, position, character)
        self.place = self.previous = self.Position(6, 94)  # On the map, now and one frame before
        self.window, self._first_col = (3, 89), 0  # Upper left cell of the window on the map

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        self.previous = self.place
        limbo_time, departure = the_plot["parameters"].limbo_time, the_plot.get("departure")
        if departure is None or the_plot.frame > departure + max(1, limbo_time) + 1:
            self._walk(*STEPS.get(actions, (0, 0)), things["#"].cells)
        elif the_plot.frame == departure + max(1, limbo_time):
            self._carry(13 + 11 * the_plot["parameters"].difficulty, 94 if limbo_time else self.place.col)
        elif the_plot.frame == departure + 1 and limbo_time:
            self._first_col = 94 - self.place.col
            self._carry(4, 140)
        self._position = self.Position(self.place.row - self.window[0], self.place.col - self.window[1])

    def _walk(self, down: int, right: int, walls: Array) -> None:
        row, col = self.place.row + down, self.place.col + right
        if walls[row, col]:
            return
        self.place = self.Position(row, col)
        top, left = self.window[0] + down, self.window[1] + right
        if self._first_col <= left <= self._first_col + WORLD_COLS - VIEW_COLS:
            self.window = (top, left)

    def _carry(self, row: int, col: int) -> None:
        self.place = self.Position(row, col)
        self.window = (row - 3, col - 5)


class Scenery(Drape):
    """Drape that shows its cells of the map inside the window."""

    def __init__(self, curtain: Any, character: str, cells: Array) -> None:
        super().__init__(curtain, character)
        self.cells = cells

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        top, left = things["P"].window
        rows = self.cells[top : top + VIEW_ROWS]
        self.curtain[:] = rows.take(range(left, left + VIEW_COLS), axis=1, mode="wrap")


class Teleporter(Scenery):
    """Teleporter that appears after a delay, and then teleports a player who is on it."""

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        if the_plot.frame >= the_plot["parameters"].teleport_delay - 1:
            super().update(actions, board, layers, backdrop, things, the_plot)
            if self.cells[things["P"].place]:
                the_plot["departure"] = the_plot.frame


class Goal(Scenery):
    """Goal pad that rewards the player one frame after its step on the pad, if time remains, and then ends the game."""

    def update(self, actions: Any, board: Any, layers: Any, backdrop: Any, things: Any, the_plot: Any) -> None:
        super().update(actions, board, layers, backdrop, things, the_plot)
        if self.cells[things["P"].previous] and the_plot.frame < the_plot["deadline"]:
            the_plot.add_reward(1.0 if self.character == the_plot["goal"] else -1.0)
            the_plot["deadline"] = the_plot.frame + 1
