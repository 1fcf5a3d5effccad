"""Maze exploration: find an invisible goal, then return to it repeatedly."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.messages import check_flag, check_integer, check_range
from ..arrays import Array, check_cell
from ..drawing import Canvas
from ..engine import BatchedEnv
from ..loops import batch_loops
from ..single import single
from . import rules

WALL, FLOOR, AGENT, GOAL, INK = (62, 68, 80), (236, 238, 240), (88, 190, 110), (250, 205, 70), (255, 255, 255)


class MazeBatch(BatchedEnv):
    """N agents, each in a maze with an invisible goal.

    Description:
        The maze is a square with a wall around it and a pillar wherever row and column are even, except in the center.
        The agent starts in the center and observes the 3x3 cells around it. The goal is a cell that looks like any
        other, the same for the whole episode: reaching it earns 10 and teleports the agent to a random cell.

    Actions: 0 up, 1 down, 2 left, 3 right; walls block.

    Observations:
        float32 [11]:

            0 .. 8      the 3x3 cells around the agent, row by row: 1 wall, 0 free
            9           steps taken / num_steps
            10          previous reward
            11 .. 14    `previous_action=True`: previous action, one-hot; zeros at the start
            last two    `show_goal=True`, the memory-free twin: rows and columns from agent to goal, in -1..1

    Start: goal uniform over the free cells, including the center and the cells next to it.

    Rewards: +10 for being on the goal after a step, -`wall_penalty` for a step into a wall; both for a step into a wall
        by an agent on the goal, where a teleport may land. In 250 steps, an agent that knows the goal earns 411.7 on
        average at size 11 (531.1 at size 9), a random one about 0 (10).

    Episode end: terminated after `num_steps` steps.

    Info: `successes`, `first_success` (the step of the first success, `num_steps` without one), `bumps`.

    Args:
        num_envs: number of environments.
        size: rows and columns including the outer wall, odd, 5..99; size 11 has 9x9 cells inside and 16 pillars.
        num_steps: length of an episode.
        wall_penalty: cost of a step into a wall.
        previous_action: observe the previous action.
        show_goal: observe the offset to the goal.
        batch: `first_index` and `render_mode`, see BatchedEnv.

    Differences from the original: the step count is observed as a fraction; no constant inputs.

    References: Munkhdalai, Sordoni, Wang, Trischler 2019, "Metalearned neural memory", section 4.3; Miconi, Stanley,
        Clune 2018, "Differentiable plasticity" (the task).
    """

    fact_values = {  # noqa: RUF012
        "goal_row": (),
        "goal_column": (),
        "row": (),
        "column": (),
        "found": ("no", "yes"),
    }
    action_names = rules.ACTION_NAMES
    symbols = ((AGENT, "you"), (FLOOR, "free cell"), (WALL, "wall or pillar"), (GOAL, "goal (only with v or the twin)"))
    episode_fields = ("successes", "first_success", "bumps")
    level_keys = ("goal", "teleports")
    sampled_keys = ("teleports",)
    loops = batch_loops(rules.start, rules.advance, rules.observe)
    state: rules.State
    params: rules.Params

    def __init__(
        self,
        num_envs: int,
        *,
        size: int = 11,
        num_steps: int = 250,
        wall_penalty: float = 0.1,
        previous_action: bool = False,
        show_goal: bool = False,
        **batch: Any,
    ) -> None:
        check_flag("previous_action", previous_action)
        check_flag("show_goal", show_goal)
        check_integer("size", size, 5, 99)
        if size % 2 == 0:
            raise ValueError(f"size is {size}; allowed: odd numbers in 5..99")
        check_integer("num_steps", num_steps, 1, 100_000)
        check_range("wall_penalty", wall_penalty, 0, rules.GOAL_REWARD)
        walls = rules.make_walls(size)
        low = np.zeros(rules.observation_size(previous_action, show_goal), np.float32)
        high = np.ones_like(low)
        low[10], high[10] = -wall_penalty, rules.GOAL_REWARD
        if show_goal:
            low[-2:] = -1.0
        super().__init__(
            num_envs,
            observation_space=spaces.Box(low, high),
            state=rules.new_state(num_envs, num_steps),
            params=rules.Params(
                walls=walls,
                free=np.argwhere(walls == 0).astype(np.uint8),
                num_steps=num_steps,
                wall_penalty=float(wall_penalty),
                previous_action=previous_action,
                show_goal=show_goal,
            ),
            **batch,
        )

    def level(self, index: int) -> dict[str, Any]:
        """The level of environment `index` from its start: `{"goal": (row, col), "teleports": [(row, col), ...]}`. The
        teleports are the destinations after successive successes."""
        row, col = self.state.goal[index].tolist()
        return {"goal": (row, col), "teleports": [(r, c) for r, c in self.state.teleports[index].tolist()]}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        goal = self._free_cell("goal", level["goal"])
        teleports = [self._free_cell("teleport", cell) for cell in level.get("teleports", ())][: self.params.num_steps]
        self.state.goal[index] = goal
        self.state.teleports[index, : len(teleports)] = np.array(teleports, np.uint8).reshape(-1, 2)
        rules.draw_teleports(self.state, self.params, index, len(teleports))
        rules.begin(self.state, self.params, index)

    def facts(self) -> dict[str, Array]:
        """Cells of goal and agent, and whether the agent has found the goal."""
        state = self.state
        return {
            "goal_row": state.goal[:, 0].astype(np.int64),
            "goal_column": state.goal[:, 1].astype(np.int64),
            "row": state.row.copy(),
            "column": state.col.copy(),
            "found": (state.successes > 0).astype(np.int64),
        }

    def paint(self, index: int, full: bool = True) -> Canvas:
        state = self.state
        row, col = int(state.row[index]), int(state.col[index])
        goal_row, goal_col = state.goal[index].tolist()
        size, top, left = (len(self.params.walls), 0, 0) if full else (rules.VIEW, row - 1, col - 1)
        canvas = Canvas(size, size, 28 if full else 100, WALL, caption_rows=1)
        for r, c in self.params.free.tolist():
            if 0 <= r - top < size and 0 <= c - left < size:
                canvas.fill(r - top + 0.02, c - left + 0.02, FLOOR, 0.96, 0.96)
        if full or (self.params.show_goal and max(abs(goal_row - row), abs(goal_col - col)) <= 1):
            canvas.fill(goal_row - top + 0.02, goal_col - left + 0.02, GOAL, 0.96, 0.96)
        canvas.disc(row - top, col - left, AGENT, 0.7)
        text = f"step {state.steps[index]} of {self.params.num_steps}, last reward {state.last_reward[index]:.1f}"
        canvas.text(size, 0.3 if full else 0.1, text, INK, 0.5 if full else 0.16)
        return canvas

    def _free_cell(self, name: str, cell: Sequence[int]) -> tuple[int, int]:
        row, col = check_cell(f"level {name}", cell)
        last = len(self.params.walls) - 1
        if not (0 < row < last and 0 < col < last) or self.params.walls[row, col]:
            raise ValueError(f"level {name} is {(row, col)}; allowed: a free cell (row, col) inside 1..{last - 1}")
        return row, col


Maze = single(MazeBatch)
