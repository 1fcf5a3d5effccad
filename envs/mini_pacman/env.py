"""Mini-Pacman: eat everything and stay alive, with a window of five by five cells."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.messages import check_choice, check_flag, check_integer, check_range
from ..arrays import Array, check_cell
from ..drawing import Canvas, rgb
from ..engine import BatchedEnv
from ..loops import batch_loops
from ..seen_map import mark_window
from ..single import single
from . import rules
from .levels import (
    COLS,
    EMPTY,
    FOOD,
    FULL_BOARD,
    HEIGHT,
    MAX_GHOSTS,
    NUM_FOOD,
    ROWS,
    TASKS,
    WALL,
    WIDTH,
    Params,
    State,
    new_state,
)
from .rules import AROUND, PACMAN_COLOR, PALETTE, PILL_COLOR, WINDOW


class MiniPacmanBatch(BatchedEnv):
    """N games of Mini-Pacman.

    Description:
        Pacman walks in a maze of 138 corridor cells full of food, with two power pills and ghosts. A pill lets it eat
        ghosts for 20 steps, one per step; otherwise a ghost ends the episode. Ghosts move at random times, keep
        their direction in corridors and turn toward Pacman at crossings (away while it has power).
        Every level starts with all food and new positions; ghosts become faster from level to level, and every second
        level adds one.

    Actions: 0 stay, 1 right, 2 up, 3 left, 4 down; a move into a wall has no effect.

    Observations:
        `view="viewport"`: uint8 [5, 5, 3]: RGB of the cells around Pacman (walls beyond the map).
        `view="full"`: uint8 [15, 19, 3], the memory-free twin: RGB of the map.
        `view="full", center="player"`: uint8 [29, 37, 3]: RGB of the map around Pacman (walls beyond the map).
        Pacman green over ghosts red (yellower with more power left) over pills cyan over food blue; walls white.

    Start: level 1 with one ghost; Pacman and pills anywhere, ghosts away from Pacman.

    Rewards:
        task       step   food   pill  ghost  death   level done
        regular       0      1      2      5      0   all food
        avoid       0.1   -0.1     -5    -10    -20   all food, or 128 steps
        hunt          0      0      1     10    -20   all ghosts
        ambush        0   -0.1      0     10    -20   all ghosts
        rush          0   -0.1     10      0      0   all pills
        Level 1 of "regular" is worth at most 138 + 4 + 5 = 147; only `frame_cap` limits an episode.

    Episode end: terminated when Pacman dies; truncated after `frame_cap` steps.

    Info: `levels_done`, the levels completed.

    Args:
        num_envs: number of environments.
        task: "regular", "avoid", "hunt", "ambush" or "rush".
        view: "viewport" or "full".
        center: middle of the full view, "map" or "player".
        reflect: mirror each episode at random, horizontally and vertically, in observations, actions and images; the
            maze is symmetric. Levels refer to the map without mirroring. Off in evaluation.
        num_ghosts: ghosts in level 1.
        num_pills: power pills in a level.
        power_steps: steps for which a pill's power lasts, including the step of eating it.
        ghost_speed: probability that a ghost moves in a step of level 1; half of it while Pacman has power.
        ghost_acceleration: increase of this speed with every level.
        ghost_randomness: probability that a ghost takes a random direction at a crossing.
        frame_cap: steps after which the game is truncated.
        batch: `first_index` and `render_mode`, see BatchedEnv.

    Differences from the released code: the window; there are never more than 32 ghosts.

    References: Racaniere, Weber et al. 2017, "Imagination-augmented agents for deep reinforcement learning" (the game,
        as released with it); Santoro et al. 2018, "Relational recurrent neural networks", 4.2 (the window).
    """

    symbols = (
        (PACMAN_COLOR, "you"),
        ((255, 0, 0), "ghost: dangerous"),
        ((255, 255, 0), "ghost: can be eaten"),
        (PILL_COLOR, "pill"),
        (rgb(PALETTE[FOOD]), "food"),
        (rgb(PALETTE[WALL] // 2), "wall"),
    )
    episode_fields = ("levels_done",)
    later_fields = ("reflection",)
    map_shape = ROWS, COLS
    map_classes = (4,)
    fact_values = {  # noqa: RUF012
        "row": (),
        "column": (),
        "food": (),
        "pills": (),
        "ghosts": (),
        "powered": ("no", "yes"),
        "levels_done": (),
    }
    action_names = rules.ACTION_NAMES
    level_keys = ("pacman", "ghosts", "directions", "pills")
    loops = batch_loops(rules.start, rules.advance, rules.observe)
    state: State
    params: Params

    def __init__(
        self,
        num_envs: int,
        *,
        task: str = "regular",
        view: str = "viewport",
        center: str = "map",
        reflect: bool = False,
        num_ghosts: int = 1,
        num_pills: int = 2,
        power_steps: int = 20,
        ghost_speed: float = 0.5,
        ghost_acceleration: float = 0.1,
        ghost_randomness: float = 0.05,
        frame_cap: int = 3000,
        **batch: Any,
    ) -> None:
        check_choice("task", task, tuple(TASKS))
        check_choice("view", view, ("viewport", "full"))
        check_choice("center", center, ("map", "player"))
        check_flag("reflect", reflect)
        check_integer("num_ghosts", num_ghosts, int(TASKS[task].all_ghosts), MAX_GHOSTS)
        check_integer("num_pills", num_pills, int(TASKS[task].all_pills), NUM_FOOD)
        check_integer("power_steps", power_steps, 1, None)
        check_range("ghost_speed", ghost_speed, 0, 1)
        check_range("ghost_acceleration", ghost_acceleration, 0, 1)
        check_range("ghost_randomness", ghost_randomness, 0, 1)
        check_integer("frame_cap", frame_cap, 1, None)
        full, centered = view == "full", center == "player"
        rows, cols = (AROUND if centered else (ROWS, COLS)) if full else (WINDOW, WINDOW)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 255, (rows, cols, 3), np.uint8),
            state=new_state(num_envs, num_pills),
            params=Params(
                **TASKS[task]._asdict(),
                num_ghosts=num_ghosts,
                num_pills=num_pills,
                power_steps=power_steps,
                ghost_speed=float(ghost_speed),
                ghost_acceleration=float(ghost_acceleration),
                ghost_randomness=float(ghost_randomness),
                frame_cap=frame_cap,
                full_view=full,
                centered=centered,
                reflect=reflect,
            ),
            **batch,
        )
        self._reflect = reflect

    @property
    def evaluation_args(self) -> Mapping[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Episodes of an evaluation are not mirrored."""
        return {"reflect": False} if self._reflect else {}

    def level(self, index: int) -> dict[str, Any]:
        """State of environment `index` as a level: `{"pacman", "ghosts", "directions", "pills"}`, cells as (row,
        col). Directions are 2 right, 3 up, 4 left, 5 down, and at the start of a level 0..3. Food is not included;
        right after a reset, this is the initial level."""
        state, ghosts, pills = self.state, int(self.state.num_ghosts[index]), int(self.state.num_pills[index])
        return {
            "pacman": _row_col(state.pacman[index]),
            "ghosts": [_row_col(cell) for cell in state.ghosts[index, :ghosts]],
            "directions": state.headings[index, :ghosts].tolist(),
            "pills": [_row_col(cell) for cell in state.pills[index, :pills]],
        }

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        for key in ("ghosts", "directions", "pills"):
            if not isinstance(level[key], list | tuple | np.ndarray):
                raise ValueError(f"level[{key!r}] is {level[key]!r}; expected a list")
        ghosts, headings = [_cell_index("ghosts", cell) for cell in level["ghosts"]], list(level["directions"])
        pills = [_cell_index("pills", cell) for cell in level["pills"]]
        check_range("number of ghosts", len(ghosts), 0, MAX_GHOSTS)
        check_range("number of pills", len(pills), 0, self.state.pills.shape[1])
        if len(headings) != len(ghosts):
            raise ValueError(f"{len(headings)} directions for {len(ghosts)} ghosts; expected one for each")
        for heading in headings:
            check_integer("direction of a ghost", heading, 0, 5)
        state = self.state
        state.pacman[index], state.reflection[index] = _cell_index("pacman", level["pacman"]), 0
        state.board[index], state.food_left[index] = FULL_BOARD, NUM_FOOD
        state.ghosts[index, : len(ghosts)], state.num_ghosts[index] = ghosts, len(ghosts)
        state.headings[index, : len(ghosts)] = headings
        state.pills[index, : len(pills)], state.num_pills[index] = pills, len(pills)
        for field in (state.power, state.frame, state.level_steps, state.levels_done):
            field[index] = 0

    def facts(self) -> dict[str, Array]:
        """Pacman's cell, remaining food, pills and ghosts, whether ghosts can be eaten, and the levels completed."""
        state = self.state
        row, column = np.array(
            [_row_col(self._displayed(i, cell)) for i, cell in enumerate(state.pacman)], np.int64
        ).T.copy()
        return {
            "row": row,
            "column": column,
            "food": state.food_left.copy(),
            "pills": state.num_pills.copy(),
            "ghosts": state.num_ghosts.copy(),
            "powered": (state.power > 0).astype(np.int64),
            "levels_done": state.levels_done.copy(),
        }

    def mark_seen(self, seen: Array) -> Array:
        """Classes: wall, empty, food, pill, as last observed; ghosts move and are omitted."""
        state = self.state
        board = np.array([2, 3, 1], np.uint8)[state.board]
        pills = np.arange(state.pills.shape[1]) < state.num_pills[:, None]
        board[np.nonzero(pills)[0], state.pills[pills]] = 4
        shown = board.reshape(-1, HEIGHT, WIDTH)[:, 1:-1, 1:-1, None]
        agents = np.stack(np.divmod(state.pacman, WIDTH), 1) - 1
        for flips in (1, 2):
            mirrored = (state.reflection & flips) > 0
            shown[mirrored] = np.flip(shown[mirrored], 3 - flips)
            agents[mirrored, 2 - flips] = (COLS if flips == 1 else ROWS) - 1 - agents[mirrored, 2 - flips]
        if self.params.full_view:
            seen[...] = shown
        else:
            mark_window(seen, shown, agents, WINDOW // 2)
        return agents

    def _displayed(self, index: int, cell: int) -> int:
        """Return the displayed position of a cell, mirrored if the episode of environment `index` is."""
        (row, col), flips = divmod(int(cell), WIDTH), self.state.reflection[index]
        return (HEIGHT - 1 - row if flips & 2 else row) * WIDTH + (WIDTH - 1 - col if flips & 1 else col)

    def paint(self, index: int, full: bool = True) -> Canvas:
        full = full or self.params.full_view
        state, reach = self.state, WINDOW // 2
        row, col = divmod(self._displayed(index, state.pacman[index]), WIDTH)
        top, left = (1, 1) if full else (row - reach, col - reach)
        canvas = Canvas(*((ROWS, COLS, 24) if full else (WINDOW, WINDOW, 72)), caption_rows=1)
        board = state.board[index].reshape(HEIGHT, WIDTH)
        flips = state.reflection[index]
        board = board[:: -1 if flips & 2 else 1, :: -1 if flips & 1 else 1]
        for r in range(canvas.rows):
            for c in range(canvas.cols):
                thing = int(board[top + r, left + c])
                if thing == WALL:
                    canvas.fill(r, c, rgb(PALETTE[WALL] // 2))
                elif thing != EMPTY:
                    canvas.disc(r, c, rgb(PALETTE[FOOD]), 0.3)
        for cell in state.pills[index, : state.num_pills[index]].tolist():
            r, c = _offset(self._displayed(index, cell), top, left)
            if canvas.holds(r, c):
                canvas.disc(r, c, PILL_COLOR, 0.6)
        power = int(state.power[index])
        for cell in state.ghosts[index, : state.num_ghosts[index]].tolist():
            r, c = _offset(self._displayed(index, cell), top, left)
            if canvas.holds(r, c):
                _draw_ghost(canvas, r, c, 255 * power // self.params.power_steps)
        canvas.wedge(row - top, col - left, PACMAN_COLOR, 0, 70)
        text = f"level {1 + state.levels_done[index]}" + (f", power {power}" if power else "")
        canvas.text(canvas.rows, 0.25, text, height=0.6 if full else 0.3)
        return canvas


MiniPacman = single(MiniPacmanBatch)


def _row_col(cell: int) -> tuple[int, int]:
    """Return (row, col) of a cell on the map."""
    return int(cell) // WIDTH - 1, int(cell) % WIDTH - 1


def _offset(cell: int, top: int, left: int) -> tuple[int, int]:
    """Return (row, col) of a cell in an image whose corner is (top, left)."""
    return cell // WIDTH - top, cell % WIDTH - left


def _cell_index(name: str, cell: Any) -> int:
    """Return the index of the cell (row, col), which must be in a corridor."""
    row, col = check_cell(f"level[{name!r}]", cell)
    if not (0 <= row < ROWS and 0 <= col < COLS) or FULL_BOARD[(row + 1) * WIDTH + col + 1] == WALL:
        raise ValueError(f"level[{name!r}] contains {(row, col)}; expected a cell of a corridor inside {ROWS} x {COLS}")
    return (row + 1) * WIDTH + col + 1


def _draw_ghost(canvas: Canvas, row: float, col: float, edible: int) -> None:
    """Draw a ghost with two eyes, red, or yellower the longer it can be eaten."""
    color = (255, edible, 0)
    canvas.disc(row - 0.08, col, color, 0.76)
    waves = [(0.92, 0.12), (0.78, 0.25), (0.92, 0.37), (0.78, 0.5), (0.92, 0.63), (0.78, 0.75), (0.92, 0.88)]
    canvas.shape(row, col, color, (0.42, 0.12), *waves, (0.42, 0.88))
    for side in (-0.16, 0.16):
        canvas.disc(row - 0.12, col + side, (255, 255, 255), 0.24)
        canvas.disc(row - 0.1, col + side, (0, 0, 0), 0.12)
