"""BoxWorld: open the right boxes in the right order, with a window of five by five cells."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.messages import check_choice, check_integer, low_high
from ..arrays import Array, check_cell
from ..drawing import BLACK, WHITE, Canvas, rgb
from ..engine import BatchedEnv
from ..loops import batch_loops
from ..seen_map import layers, mark_window
from ..single import single
from . import rules
from .levels import BAIT, FLOOR, GEM, KEY, LOCK, NOTHING, NUM_COLORS, PLAYER, Params, State, check_fits, new_state
from .rules import PALETTE, WINDOW

_LETTERS = (
    {"#": NOTHING, " ": FLOOR, "*": GEM, ".": PLAYER}
    | {chr(ord("a") + k): KEY + k for k in range(NUM_COLORS)}
    | {chr(ord("A") + k): LOCK + k for k in range(NUM_COLORS)}
)


_LOCKS = ("solution_locks", "distractor_locks")


def _map_tables() -> tuple[Array, Array]:
    """Kind and color of every cell code, as in maps."""
    kinds, colors = np.ones(BAIT + NUM_COLORS, np.uint8), np.zeros(BAIT + NUM_COLORS, np.uint8)
    kinds[FLOOR], kinds[GEM], kinds[KEY:LOCK], kinds[LOCK:] = 2, 3, 4, 5
    colors[KEY:] = 1 + np.arange(BAIT + NUM_COLORS - KEY) % NUM_COLORS
    return kinds, colors


_MAP = _map_tables()


class BoxWorldBatch(BatchedEnv):
    """N games of BoxWorld.

    Description:
        A room contains boxes, a loose key and a player. A box has two cells: its content and, to the right of it, a
        lock that a key of the same color opens. The loose key opens a box that contains the key of the next box, and
        so on, up to the gem.
        Keys of this path also open boxes of distractor branches, which do not lead to the gem: opening
        one ends the game. The player carries one key at a time, and a lock consumes it.

    Actions: 0 up, 1 down, 2 left, 3 right; the border, locks without their key and contents of locked boxes block.

    Observations:
        `view="viewport"`: uint8 [5, 5, 6]: RGB of the cells around the player (black outside the room), and RGB of the
        carried key in every pixel (black: none).
        `view="full"`: uint8 [14, 14, 3], the memory-free twin: RGB of the board, with the carried key at (0, 0).
        Player gray, gem white, floor light gray, border black; key and lock of a pair share one of 20 hues.

    Start: a path of L locks, L uniform in `path_lengths`; D distractor branches, D uniform in `num_distractors`, each
        from a random lock color of the path; positions are random, but boxes never touch.

    Rewards: +1 for every lock of the path, -1 for a lock of a distractor, +10 for the gem; at best L + 10.

    Episode end: terminated when the gem is collected or a distractor is opened; truncated at action `max_steps` + 1.

    Info: `solved` (the gem was collected), `path_length`, `num_distractors`.

    Args:
        num_envs: number of environments.
        path_lengths: L, or its minimum and maximum.
        num_distractors: D, or its minimum and maximum.
        branch_length: boxes in a distractor branch.
        grid_size: rows and columns of the room inside the border.
        view: "viewport" or "full".
        max_steps: the action after this many truncates the game.
        batch: `first_index` and `render_mode`, see BatchedEnv.

    Differences from the original: there is no no-op action; the window never shows the carried key.

    References: Zambaldi et al. 2018, "Relational deep reinforcement learning" (the task); Santoro et al. 2018,
        "Relational recurrent neural networks", A.3 (the window and the defaults).
    """

    symbols = (
        (rgb(PALETTE[PLAYER] // 2), "you"),
        (WHITE, "gem"),
        (rgb(PALETTE[KEY]), "a to t: key (20 colors)"),
        (rgb(PALETTE[LOCK]), "A to T: lock of that key"),
        (rgb(PALETTE[FLOOR]), "floor"),
        (rgb(PALETTE[NOTHING]), "wall"),
    )
    episode_fields = ("solved", "path_length", "num_distractors")
    level_fields = ("path_length", "num_distractors")
    fact_values = {  # noqa: RUF012
        "key": ("none", *(chr(ord("a") + color) for color in range(NUM_COLORS))),
        "locks": (),
        "solved": ("no", "yes"),
    }
    action_names = rules.ACTION_NAMES
    level_keys = ("board", *_LOCKS)
    map_classes = (5, NUM_COLORS)
    loops = batch_loops(rules.start, rules.advance, rules.observe)
    state: State
    params: Params

    def __init__(
        self,
        num_envs: int,
        *,
        path_lengths: int | tuple[int, int] = (1, 5),
        num_distractors: int | tuple[int, int] = (0, 5),
        branch_length: int = 1,
        grid_size: int = 12,
        view: str = "viewport",
        max_steps: int = 120,
        **batch: Any,
    ) -> None:
        paths = low_high("path_lengths", path_lengths, 1, NUM_COLORS)
        branches = low_high("num_distractors", num_distractors, 0, None)
        check_integer("branch_length", branch_length, 1, None)
        check_integer("grid_size", grid_size, 5, 64)
        check_choice("view", view, ("viewport", "full"))
        check_integer("max_steps", max_steps, 1, None)
        check_fits(paths[1], branches[1], branch_length, grid_size)
        self.grid_size = grid_size
        self.map_shape, full = (grid_size + 2, grid_size + 2), view == "full"
        shape = (grid_size + 2, grid_size + 2, 3) if full else (WINDOW, WINDOW, 6)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 255, shape, np.uint8),
            state=new_state(num_envs, grid_size),
            params=Params(*paths, *branches, branch_length, max_steps, full),
            **batch,
        )

    def level(self, index: int) -> dict[str, Any]:
        """State of environment `index` as a level: `{"board", "solution_locks", "distractor_locks"}`. The board is a
        list of strings: ' ' floor, '#' border, '.' player, '*' gem, 'a'-'t' keys, 'A'-'T' locks; a carried key is at
        (0, 0). Right after a reset, it is the initial level. Locks are (row, col)."""
        board = self.state.board[index, 1:-1, 1:-1].copy()
        board[0, 0] = self.state.held[index]
        board[self.state.row[index] - 1, self.state.col[index] - 1] = PLAYER
        locks, baits = np.argwhere((board >= LOCK) & (board < BAIT)), np.argwhere(board >= BAIT)
        letters = {code: letter for letter, code in _LETTERS.items()}
        plain = np.where(board >= BAIT, board - NUM_COLORS, board)
        return {
            "board": ["".join(letters[int(code)] for code in row) for row in plain],
            "solution_locks": [(int(r), int(c)) for r, c in locks],
            "distractor_locks": [(int(r), int(c)) for r, c in baits],
        }

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        board, (row, col) = _parse(level, self.grid_size)
        state = self.state
        state.held[index], board[0, 0] = board[0, 0], NOTHING
        state.board[index] = NOTHING
        state.board[index, 1:-1, 1:-1] = board
        state.row[index], state.col[index] = row + 1, col + 1
        state.path_length[index] = len(level["solution_locks"])
        state.num_distractors[index] = len(level["distractor_locks"])
        state.steps[index], state.solved[index] = 0, False

    def facts(self) -> dict[str, Array]:
        """The carried key, the remaining locks on the path to the gem, and whether the gem was collected."""
        held, board = self.state.held.astype(np.int64), self.state.board
        return {
            "key": np.where(held == NOTHING, 0, held - KEY + 1),
            "locks": ((board >= LOCK) & (board < BAIT)).sum((1, 2)),
            "solved": self.state.solved.astype(np.int64),
        }

    @property
    def privileged_size(self) -> int:
        return 6

    def privileged(self) -> Array:
        """float32 [N, 6]: number of remaining locks on the path; rows and columns from the player to the next one (0 if
        none); whether the carried key opens it, whether it opens any on the path, and how many distractors it opens."""
        state, board = self.state, self.state.board
        key, rows = state.held.astype(np.int64), np.arange(self.num_envs)
        codes = board.reshape(self.num_envs, -1)
        n, cell = np.nonzero((codes >= LOCK) & (codes < BAIT))
        color, content = codes[n, cell].astype(np.int64) - LOCK, codes[n, cell - 1].astype(np.int64) - KEY
        at = np.zeros((self.num_envs, NUM_COLORS), np.int64)  # cells of the path's locks by color, 0 for none
        at[n, color] = cell
        following = at > 0  # finally, only the next lock: its key is in none of the path's boxes
        inside = (content >= 0) & (content < NUM_COLORS)
        following[n[inside], content[inside]] = False
        some, next_color = following.any(1), following.argmax(1)
        row, col = np.divmod(at[rows, next_color], board.shape[2])
        held, fits = key != NOTHING, np.clip(key - KEY, 0, NUM_COLORS - 1)
        return np.stack(
            [
                (at > 0).sum(1),
                np.where(some, row - state.row, 0),
                np.where(some, col - state.col, 0),
                some & (key == KEY + next_color),
                held & (at[rows, fits] > 0),
                (codes == (fits + BAIT)[:, None]).sum(1) * held,
            ],
            1,
        ).astype(np.float32)

    def mark_seen(self, seen: Array) -> Array:
        """Layer 0: border, floor, gem, key, lock; layer 1: the color of a key or lock."""
        shown = layers(self.state.board[:, 1:-1, 1:-1], _MAP)
        players = np.stack([self.state.row, self.state.col], 1) - 1
        if self.params.full_view:
            seen[...] = shown
        else:
            mark_window(seen, shown, players, WINDOW // 2)
        return players

    def paint(self, index: int, full: bool = True) -> Canvas:
        full = full or self.params.full_view
        row, col = int(self.state.row[index]), int(self.state.col[index])
        reach = WINDOW // 2
        board = self.state.board[index]
        top, left, size = (1, 1, self.grid_size + 2) if full else (row - reach, col - reach, WINDOW)
        cell = 28 if full else 28 * 14 // WINDOW
        canvas = Canvas(size, size, cell, caption_rows=1)
        for r in range(size):
            for c in range(size):
                _draw_cell(canvas, r, c, int(board[top + r, left + c]))
        canvas.fill(row - top, col - left, rgb(PALETTE[FLOOR]))
        canvas.disc(row - top, col - left, rgb(PALETTE[PLAYER] // 2), 0.8)
        canvas.text(size, 0.25, "in hand:", height=0.5 if full else 0.3)
        if self.state.held[index] != NOTHING:
            _draw_cell(canvas, size, 2.5 if full else 1.7, int(self.state.held[index]))
        return canvas


BoxWorld = single(BoxWorldBatch)


def _parse(level: Mapping[str, Any], grid_size: int) -> tuple[Array, tuple[int, int]]:
    """Parse a level: codes [grid_size + 2, grid_size + 2] with floor under the player, and the player's position."""
    lines, side = level["board"], grid_size + 2
    if not isinstance(lines, list | tuple) or [len(str(line)) for line in lines] != [side] * side:
        raise ValueError(f"level['board'] is {lines}; expected {side} strings of {side} characters")
    for letter in sorted(set("".join(map(str, lines))) - set(_LETTERS)):
        raise ValueError(f"level['board'] contains {letter!r}; allowed: {''.join(_LETTERS)!r}")
    board = np.array([[_LETTERS[letter] for letter in line] for line in lines], np.int8)
    border = np.ones_like(board, np.bool_)
    border[1:-1, 1:-1] = border[0, 0] = False
    if board[border].any() or board[0, 0] not in (NOTHING, *range(KEY, LOCK)):
        raise ValueError(f"the border of level['board'] must be '#', with a carried key at (0, 0) or none; got {lines}")
    players = np.argwhere(board == PLAYER)
    for count, objects in ((len(players), "players '.'"), (int((board == GEM).sum()), "gems '*'")):
        if count != 1:
            raise ValueError(f"level['board'] contains {count} {objects}; expected 1")
    declared = [check_cell(f"level[{key!r}]", lock) for key in _LOCKS for lock in level[key]]
    locks = [(int(r), int(c)) for r, c in np.argwhere(board >= LOCK)]
    if sorted(declared) != locks:
        raise ValueError(
            f"solution_locks and distractor_locks are {sorted(declared)}; the locks of the board are {locks}"
        )
    for r, c in level["distractor_locks"]:
        board[r, c] += NUM_COLORS
    row, col = (int(index) for index in players[0])
    board[row, col] = FLOOR
    return board, (row, col)


def _draw_cell(canvas: Canvas, row: float, col: float, code: int) -> None:
    """Paint one cell: a key as a key, a lock as a padlock, the gem as a diamond."""
    floor, color = rgb(PALETTE[FLOOR]), rgb(PALETTE[code])
    if code == NOTHING:
        return
    if code >= LOCK:
        canvas.fill(row, col, color)
        canvas.disc(row - 0.08, col, BLACK, 0.3)
        canvas.shape(row, col, BLACK, (0.45, 0.44), (0.45, 0.56), (0.75, 0.62), (0.75, 0.38))
        canvas.sign(row, col, f"{chr(ord('A') + (code - LOCK) % NUM_COLORS)} ", BLACK)
        return
    canvas.fill(row, col, floor)
    if code >= KEY:
        canvas.disc(row, col - 0.22, color, 0.5)
        canvas.disc(row, col - 0.22, floor, 0.2)
        canvas.fill(row + 0.43, col + 0.45, color, 0.14, 0.5)
        canvas.fill(row + 0.5, col + 0.78, color, 0.22, 0.12)
        canvas.sign(row, col, f"{chr(ord('a') + code - KEY)}▌", rgb(PALETTE[code] // 2))
    elif code == GEM:
        canvas.shape(row, col, BLACK, (0.05, 0.5), (0.5, 0.95), (0.95, 0.5), (0.5, 0.05))
        canvas.shape(row, col, WHITE, (0.14, 0.5), (0.5, 0.86), (0.86, 0.5), (0.5, 0.14))
