"""Mini-Pacman: eat everything and stay alive, with a window of five by five cells."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.errors import check_choice, check_flag, check_integer, check_range
from ..arrays import Array, check_cell, zeroed
from ..drawing import WHITE, Canvas, mosaic, rgb
from ..engine import BatchedEnv, batch_loops
from ..parts import mark_window
from ..single import single
from . import rules
from .rules import COLS, FOOD, FULL_BOARD, HEIGHT, MAX_GHOSTS, NUM_FOOD, ROWS, TASKS, WALL, WIDTH, WINDOW, Params, State


class MiniPacmanBatch(BatchedEnv):
    """N games of Mini-Pacman.

    Pacman walks in a maze of 138 corridor cells full of food, with two power pills and ghosts. A pill lets it eat
    ghosts for 20 steps, one per step; otherwise a ghost ends the episode. Ghosts move at random times, keep their
    direction in corridors and turn toward Pacman at crossings (away while it has power). Every level starts with all
    food and new positions; ghosts become faster from level to level, and every second level adds one.

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
        ghost_bonus: additional reward for eating a ghost, as an incentive to hunt. Off in evaluation.
        frame_cap: steps after which the game is truncated.

    Differences from the released code: the window; there are never more than 32 ghosts.
    References: Racaniere, Weber et al. 2017, "Imagination-augmented agents for deep reinforcement learning" (the game,
        as released with it); Santoro et al. 2018, "Relational recurrent neural networks", 4.2 (the window).
    """

    symbols = (
        (rules.PACMAN_COLOR, "you"),
        ((255, 0, 0), "ghost: dangerous"),
        ((255, 255, 0), "ghost: can be eaten"),
        (rules.PILL_COLOR, "pill"),
        (rgb(rules.PALETTE[FOOD]), "food"),
        (WHITE, "wall"),
    )
    episode_fields = ("levels_done",)
    map_shape = ROWS, COLS
    map_classes = (4,)
    fact_values = {  # noqa: RUF012
        **dict.fromkeys(("row", "column", "food", "pills", "ghosts"), ()),
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
        ghost_bonus: float = 0.0,
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
        check_range("ghost_bonus", ghost_bonus, 0, None)
        check_integer("frame_cap", frame_cap, 1, None)
        full, centered = view == "full", center == "player"
        rows, cols = (rules.AROUND if centered else (ROWS, COLS)) if full else (WINDOW, WINDOW)
        board, ghosts, pills = ((np.int8, len(FULL_BOARD)), (np.int64, MAX_GHOSTS), (np.int64, num_pills))
        counts = num_ghosts, num_pills, power_steps
        chances = float(ghost_speed), float(ghost_acceleration), float(ghost_randomness)
        rewards = TASKS[task]._replace(ghost_reward=TASKS[task].ghost_reward + ghost_bonus)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 255, (rows, cols, 3), np.uint8),
            state=zeroed(State, num_envs, board=board, ghosts=ghosts, headings=ghosts, pills=pills),
            params=Params(rewards, *counts, *chances, frame_cap, full, centered, reflect),
            **batch,
        )
        self.evaluation_args = ({"reflect": False} if reflect else {}) | ({"ghost_bonus": 0.0} if ghost_bonus else {})

    def level(self, index: int) -> dict[str, Any]:
        """State of environment `index` as a level, without food; right after a reset, the initial one. Cells are (row,
        col), directions 2 right, 3 up, 4 left, 5 down, and at the start of a level 0..3."""
        state, ghosts, pills = self.state, int(self.state.num_ghosts[index]), int(self.state.num_pills[index])

        def cells(indices: Array) -> list[tuple[int, int]]:
            return [(cell // WIDTH - 1, cell % WIDTH - 1) for cell in indices.tolist()]

        return {
            "pacman": cells(state.pacman[index : index + 1])[0],
            "ghosts": cells(state.ghosts[index, :ghosts]),
            "directions": state.headings[index, :ghosts].tolist(),
            "pills": cells(state.pills[index, :pills]),
        }

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        pacman, headings = _cell_index("pacman", level["pacman"]), list(level["directions"])
        ghosts, pills = ([_cell_index(key, cell) for cell in level[key]] for key in ("ghosts", "pills"))
        state = self.state
        check_range("number of ghosts", len(ghosts), 0, MAX_GHOSTS)
        check_range("number of pills", len(pills), 0, state.pills.shape[1])
        if len(headings) != len(ghosts):
            raise ValueError(f"{len(headings)} directions for {len(ghosts)} ghosts; expected one for each")
        for heading in headings:
            check_integer("direction of a ghost", heading, 0, 5)
        state.pacman[index], state.board[index], state.food_left[index] = pacman, FULL_BOARD, NUM_FOOD
        state.ghosts[index, : len(ghosts)], state.num_ghosts[index] = ghosts, len(ghosts)
        state.headings[index, : len(ghosts)] = headings
        state.pills[index, : len(pills)], state.num_pills[index] = pills, len(pills)
        for field in (state.power, state.frame, state.level_steps, state.levels_done, state.reflection):
            field[index] = 0

    def fact_columns(self) -> list[Array]:
        state = self.state
        counts = [state.food_left, state.num_pills, state.num_ghosts]
        return [*self._displayed_cells().T, *counts, state.power > 0, state.levels_done]

    def mark_seen(self, seen: Array) -> Array:
        """Classes: wall, empty, food, pill, as last observed; ghosts move and are omitted."""
        state = self.state
        board = np.array([2, 3, 1], np.uint8)[state.board]
        pills = np.arange(state.pills.shape[1]) < state.num_pills[:, None]
        board[np.nonzero(pills)[0], state.pills[pills]] = 4
        shown = board.reshape(-1, HEIGHT, WIDTH)[:, 1:-1, 1:-1, None]
        for flips in (1, 2):
            mirrored = (state.reflection & flips) > 0
            shown[mirrored] = np.flip(shown[mirrored], 3 - flips)
        agents = self._displayed_cells()
        if self.params.full_view:
            seen[...] = shown
        else:
            mark_window(seen, shown, agents, WINDOW // 2)
        return agents

    def _displayed_cells(self) -> Array:
        """Return Pacman's cells on the map as displayed, mirrored if the episode is: int64 [N, 2]."""
        cells = np.stack(np.divmod(self.state.pacman, WIDTH), 1) - 1
        mirrored = (self.state.reflection[:, None] & np.array([2, 1])) > 0
        return np.where(mirrored, np.array([ROWS - 1, COLS - 1]) - cells, cells)

    def paint(self, index: int, full: bool = True) -> Canvas:
        full = full or self.params.full_view
        image = np.zeros((ROWS, COLS, 3) if full else (WINDOW, WINDOW, 3), np.uint8)
        rules.observe(self.state, self.params._replace(full_view=full, centered=False), index, image)
        return mosaic(image, 24 if full else 72)


MiniPacman = single(MiniPacmanBatch)


def _cell_index(name: str, cell: Any) -> int:
    """Return the index of the cell (row, col), which must be in a corridor."""
    row, col = check_cell(f"level[{name!r}]", cell, FULL_BOARD.reshape(HEIGHT, WIDTH)[1:-1, 1:-1] != WALL)
    return (row + 1) * WIDTH + col + 1
