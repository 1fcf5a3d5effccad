"""The T-maze: observe a cue, wait in limbo, then walk to the goal that the cue indicated."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.errors import check_flag, check_integer, check_numbers
from ..arrays import Array, zeroed
from ..drawing import BLACK, Canvas, Color, mosaic
from ..engine import BatchedEnv, batch_loops
from ..parts import last_frame
from ..single import single
from . import rules
from .rules import COLS, PAD_WIDTH, ROWS, VIEW_COLS, VIEW_ROWS, pack, unpack

_WALL = (150, 40, 200)
_COLORS: tuple[Color, ...] = (BLACK, _WALL, (0, 225, 235), (0, 225, 0), (70, 110, 255))  # Colors of the planes


class TMazeBatch(BatchedEnv):
    """N games of the T-maze.

    The player starts in a room; a cue on the left or right edge of its view indicates the left or the right
    goal. A teleporter appears along the upper wall of the room after `teleport_delay` frames. It leads to
    limbo, where the player can only wait, and after `limbo_time` frames to the middle of a corridor. From each end
    of the corridor, an arm leads down to a goal pad. The cue disappears when the player is teleported.
    With f the frame in which the teleporter is taken, limbo is visible in frames f + 1 to f + limbo_time - 1, the
    maze from frame f + limbo_time on (f + 1 without limbo), and the moves of its first two frames are ignored.

    Actions: 0 up, 1 down, 2 left, 3 right, 4 stay; walls block, speckle only looks like wall.
    Observations:
        uint8 [7, 11, 5], binary: the part of the map around the player, who is in the middle (3, 5). One plane for
        each of the characters " #PQ~", in this order: nothing, wall or speckle, player, cue, teleporter or goal pad.
        Every cell shows only the topmost character, player over cue over pads. The cue is at rows 4-6 and columns 0-1
        (left) or 9-10 (right) of the view, wherever the player is. Everything outside the maze is speckle: each cell
        looks like wall with probability 0.6, sampled again for every episode.
        In the widest maze (difficulty 5), the view stops at the edge of the map; from then on the player is off-center.

    Start: the player is below the middle of the room; the goal is left or right with probability 1/2.
    Rewards: -0.001 in every frame from frame 2 on, except the last; +1 (correct goal) or -1 (wrong goal) in the frame
        after the player reaches the pad. At best, with the defaults, 0.613 (left, 389 steps) and 0.611 (right, 391
        steps); a timeout, as in random play, gives -0.998.
    Episode end: terminated one frame after the reward of a goal, or at frame `timeout_frames`.
    Info: `solved` (the correct goal was reached in time), `finished` (a goal was reached in time).
    Endless: with `endless=True`, a new trial begins in the frame that would be the last, one frame after the reward of
        a goal: the player is back in the room, goal and speckle are sampled again, and the teleporter appears
        `teleport_delay` - 1 frames later. Every frame from frame 2 on costs 0.001, except the last of the episode, at
        frame `timeout_frames`. Info also contains `decisions` (goals reached) and `correct` (correct goals); `solved`
        refers to the latest goal.

    Args:
        difficulty: 0 to 5: mazes whose outer walls are 10, 15, 22, 35, 56 or 92 columns from the middle.
        limbo_time: frames in limbo: 0 for none, or at least 2.
        teleport_delay: the teleporter appears in frame teleport_delay - 1 (0 and 1: from the start).
        timeout_frames: frame in which the episode ends at the latest; -1 for no timeout.
        cue_after_teleport: keep showing the cue: the memory-free twin.
        endless: whether a new trial with a new cue follows every goal, until `timeout_frames`, which must be positive.
        half_width: columns from the middle of the maze to its outer walls, 4 to 92; None: set by the difficulty. The
            shortest path to a pad has half_width + 2 moves; from difficulty 4 on, one fewer to the left and one more to
            the right. Agents quickly learn difficulty 0, half_width 5, limbo_time 40, teleport_delay 1.
        engine: "compiled", or "pycolab": a readable game with the same rules, a hundred times slower (`--env-args`).

    Differences from the original: no action quits the game; a "down" right after stepping on a pad is blocked by the
        wall below it; limbo_time 1 is rejected, since the original then leaves limbo at a wrong position; with
        limbo_time 2 the original may misplace the right pad by one cell.
    References: Stepleton et al. 2018, "Low-pass recurrent neural networks", 5.2.2 and B.2.
    """

    symbols = (
        (_COLORS[rules.PLAYER], "you"),
        (_COLORS[rules.CUE], "cue, at the left or right"),
        (_COLORS[rules.PAD], "teleporter or goal pad"),
        (_WALL, "wall, or a look-alike"),
    )
    episode_fields = ("solved", "finished")
    fact_values = {  # noqa: RUF012
        "goal": ("left", "right"),
        "place": ("room", "limbo", "maze"),
        "cue": ("hidden", "shown"),
        "reached": ("no pad", "the wrong pad", "the right pad"),
    }
    action_names = rules.ACTION_NAMES
    level_keys = ("goal", "speckle")
    sampled_keys = ("speckle",)
    loops = batch_loops(rules.start, rules.advance, rules.observe)
    state: rules.State
    params: rules.Params

    def __init__(
        self,
        num_envs: int,
        *,
        difficulty: int = 4,
        limbo_time: int = 280,
        teleport_delay: int = 50,
        timeout_frames: int = 1000,
        cue_after_teleport: bool = False,
        half_width: int | None = None,
        endless: bool = False,
        **batch: Any,
    ) -> None:
        check_flag("cue_after_teleport", cue_after_teleport)
        check_integer("difficulty", difficulty, 0, len(rules.HALF_WIDTHS) - 1)
        check_integer("limbo_time", limbo_time, 0, None)
        if limbo_time == 1:
            raise ValueError("limbo_time is 1; allowed: 0 (no limbo), or at least 2")
        check_integer("teleport_delay", teleport_delay, 0, None)
        last = last_frame(timeout_frames)
        check_flag("endless", endless)
        if endless:
            check_integer("timeout_frames of an endless episode", timeout_frames, 1, None)
            self.episode_fields = (*self.episode_fields, "decisions", "correct")
        if half_width is not None:
            check_integer("half_width", half_width, PAD_WIDTH + 1, rules.HALF_WIDTHS[-1])
        maze = self.maze = rules.maze_at(difficulty, half_width)
        walls, speckle = map(pack, rules.draw_map(maze))
        frames = limbo_time, max(1, limbo_time), teleport_delay, last
        cells = maze.top + 1, maze.top + 6, maze.left + 1, maze.right - PAD_WIDTH
        constants = rules.Rules(*frames, cue_after_teleport, *cells, endless)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (VIEW_ROWS, VIEW_COLS, len(rules.CHARACTERS)), np.uint8),
            state=zeroed(rules.State, num_envs, board=(np.uint64, ROWS, rules.WORDS), finished=np.bool_),
            params=rules.Params(constants, walls, speckle),
            **batch,
        )

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: the goal, 0 left or 1 right, and the cells that look like wall."""
        speckle = unpack(self.state.board[index] & self.params.speckle)
        return {"goal": int(self.state.goal[index]), "speckle": speckle}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        (goal,) = check_numbers("level['goal']", [level["goal"]], 1, 2)
        state, params = self.state, self.params
        if "speckle" in level:
            cells = np.asarray(level["speckle"])
            if cells.shape != (ROWS, COLS) or cells.dtype != np.bool_:
                expected = f"expected bool ({ROWS}, {COLS})"
                raise ValueError(f"level['speckle'] is an array of {cells.dtype} {cells.shape}; {expected}")
            state.board[index] = params.walls | (pack(cells) & params.speckle)
        else:
            rules.draw_board(state.random, index, params.walls, params.speckle, state.board[index])
        state.goal[index] = goal
        rules.begin(state, params.rules, index)

    def fact_columns(self) -> list[Array]:
        state, rules = self.state, self.params.rules
        in_room = state.frame <= state.arrival - rules.journey_time
        place = np.where(in_room, 0, 2 - (state.frame < state.arrival))
        return [state.goal, place, in_room | rules.cue_after_teleport, state.finished.astype(np.int64) + state.solved]

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Paint the view, which is all that can be seen."""
        return mosaic(np.array(_COLORS)[self.observe_all()[index].argmax(2)], 40)


TMaze = single(TMazeBatch)
