"""BoxWorld: open the right boxes in the right order, with a window of five by five cells."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.errors import check_choice, check_integer, low_high
from ..arrays import Array, zeroed
from ..drawing import WHITE, Canvas, rgb
from ..engine import BatchedEnv, batch_loops
from ..parts import mark_window
from ..single import single
from . import rules
from .rules import BAIT, FLOOR, GEM, KEY, LOCK, NOTHING, NUM_COLORS, PALETTE, PLAYER, WINDOW, Params, State

_KEYS = "abcdefghijklmnopqrst"
_LETTERS = {letter: code for code, letter in enumerate(f"# *.{_KEYS}{_KEYS.upper()}")}


_MAP = np.zeros((BAIT + NUM_COLORS, 2), np.uint8)  # Kind and color of every cell code, as in maps
_MAP[:, 0] = np.repeat([1, 2, 3, 1, 4, 5], [1, 1, 1, 1, NUM_COLORS, 2 * NUM_COLORS])
_MAP[KEY:, 1] = np.tile(1 + np.arange(NUM_COLORS), 3)


class BoxWorldBatch(BatchedEnv):
    """N games of BoxWorld.

    A room contains boxes, a loose key and a player. A box has two cells: its content and, to the right of it, a
    lock that a key of the same color opens. The loose key opens a box that contains the key of the next box, and
    so on, up to the gem. Keys of this path also open boxes of distractor branches, which do not lead to the gem:
    opening one ends the game. The player carries one key at a time, and a lock consumes it.

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
        path_lengths: L, or its minimum and maximum.
        num_distractors: D, or its minimum and maximum.
        branch_length: boxes in a distractor branch.
        grid_size: rows and columns of the room inside the border.
        view: "viewport" or "full".
        max_steps: the action after this many truncates the game.

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
    fact_values = {"key": ("none", *_KEYS), "locks": (), "solved": ("no", "yes")}  # noqa: RUF012
    action_names = rules.ACTION_NAMES
    level_keys = ("board", "solution_locks", "distractor_locks")
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
        _check_fits(paths[1], branches[1], branch_length, grid_size)
        self.map_shape, full = (grid_size + 2, grid_size + 2), view == "full"
        board = np.int8, grid_size + 4, grid_size + 4
        shape = (*self.map_shape, 3) if full else (WINDOW, WINDOW, 6)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 255, shape, np.uint8),
            state=zeroed(State, num_envs, board=board, colors=(np.int8, NUM_COLORS), held=np.int8),
            params=Params(*paths, *branches, branch_length, max_steps, full),
            **batch,
        )

    def level(self, index: int) -> dict[str, Any]:
        """State of environment `index` as a level; right after a reset, the initial one. The board has ' ' floor, '#'
        border, '.' player, '*' gem, 'a'-'t' keys, 'A'-'T' locks, and a carried key at (0, 0). Locks are (row, col)."""
        board = self.state.board[index, 1:-1, 1:-1].copy()
        board[0, 0] = self.state.held[index]
        board[self.state.row[index] - 1, self.state.col[index] - 1] = PLAYER
        letters = np.array([*_LETTERS, *_KEYS.upper()])
        return {
            "board": ["".join(row) for row in letters[board].tolist()],
            "solution_locks": [(r, c) for r, c in np.argwhere((board >= LOCK) & (board < BAIT)).tolist()],
            "distractor_locks": [(r, c) for r, c in np.argwhere(board >= BAIT).tolist()],
        }

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        board, state = _parse(level, self.state.board.shape[1] - 2), self.state
        ((row, col),) = np.argwhere(board == PLAYER)
        board[row, col] = FLOOR
        state.held[index], board[0, 0] = board[0, 0], NOTHING
        state.board[index] = np.pad(board, 1, constant_values=NOTHING)
        state.row[index], state.col[index] = row + 1, col + 1
        state.path_length[index] = len(level["solution_locks"])
        state.num_distractors[index] = len(level["distractor_locks"])
        state.steps[index], state.solved[index] = 0, False

    def fact_columns(self) -> list[Array]:
        key, board = self.state.held.astype(np.int64), self.state.board
        locks = ((board >= LOCK) & (board < BAIT)).sum((1, 2))
        return [np.where(key == NOTHING, 0, key - KEY + 1), locks, self.state.solved]

    @property
    def privileged_size(self) -> int:
        return 6

    def privileged(self) -> Array:
        """float32 [N, 6]: number of remaining locks on the path; rows and columns from the player to the next one (0 if
        none); whether the carried key opens it, whether it opens any on the path, and how many distractors it opens."""
        state, side, games = self.state, self.state.board.shape[2], np.arange(self.num_envs)
        codes = state.board.reshape(self.num_envs, -1).astype(np.int64)
        n, cell = np.nonzero((codes >= LOCK) & (codes < BAIT))
        at = np.zeros((self.num_envs, NUM_COLORS), np.int64)  # cells of the path's locks by color, 0 for none
        at[n, codes[n, cell] - LOCK] = cell
        following, content = at > 0, codes[n, cell - 1]
        inside = (content >= KEY) & (content < LOCK)
        following[n[inside], content[inside] - KEY] = False  # only the next lock's key is in none of the path's boxes
        some, color = following.any(1), following.argmax(1)
        row, col = np.divmod(at[games, color], side)
        held = state.held != NOTHING
        key = np.where(held, state.held.astype(np.int64) - KEY, 0)
        down, right = np.where(some, row - state.row, 0), np.where(some, col - state.col, 0)
        opens_next, opens_any = some & held & (key == color), held & (at[games, key] > 0)
        baits = held * (codes == BAIT + key[:, None]).sum(1)
        columns = [(at > 0).sum(1), down, right, opens_next, opens_any, baits]
        return np.stack(columns, 1).astype(np.float32)

    def mark_seen(self, seen: Array) -> Array:
        """Layer 0: border, floor, gem, key, lock; layer 1: the color of a key or lock."""
        shown, players = _MAP[self.state.board[:, 1:-1, 1:-1]], np.stack([self.state.row, self.state.col], 1) - 1
        if self.params.full_view:
            seen[...] = shown
        else:
            mark_window(seen, shown, players, WINDOW // 2)
        return players

    def paint(self, index: int, full: bool = True) -> Canvas:
        full = full or self.params.full_view
        row, col, reach = int(self.state.row[index]), int(self.state.col[index]), WINDOW // 2
        board = self.state.board[index].copy()
        board[row, col] = PLAYER
        board = board[1:-1, 1:-1] if full else board[row - reach : row + reach + 1, col - reach : col + reach + 1]
        cells = np.pad(board, ((0, 1), (0, 0)), constant_values=NOTHING)  # the last row shows the carried key
        cells[-1, 0] = self.state.held[index]
        canvas = Canvas(*cells.shape, cell=28 if full else 78)
        canvas.text(len(board), 1.25, "in hand", height=0.5 if full else 0.3)
        for (r, c), code in np.ndenumerate(cells):
            if code != NOTHING:
                canvas.fill(r, c, rgb(PALETTE[code if code >= LOCK else FLOOR]))
            if NOTHING < code < LOCK and code != FLOOR:
                canvas.disc(r, c, rgb(PALETTE[code] // (2 if code == PLAYER else 1)), 0.6 if code >= KEY else 0.8)
            if code >= KEY:
                letter = _KEYS[(code - KEY) % NUM_COLORS]
                canvas.text(r, c + 0.35, letter.upper() if code >= LOCK else letter, rgb(PALETTE[code] // 2), 0.5)
        return canvas


BoxWorld = single(BoxWorldBatch)


def _check_fits(path_length: int, num_distractors: int, branch_length: int, grid_size: int) -> None:
    """Raise ValueError if the largest level that may be sampled lacks colors or room. The limit on room was measured:
    within it, at least one in 200 sampled levels fits."""
    if num_distractors and NUM_COLORS - 1 - path_length < min(branch_length, 2):
        most = NUM_COLORS - 1 - min(branch_length, 2)
        raise ValueError(f"path_lengths up to {path_length} leave no colors for distractors; allowed: up to {most}")
    objects = 1 + path_length + num_distractors * branch_length
    packed = ((grid_size - 1) // 2) * ((grid_size - 2) // 3)  # rows of boxes times boxes in a row
    most = min(max(2, packed * 7 // 8), 30)
    if objects > most:
        raise ValueError(
            f"path_lengths up to {path_length} and num_distractors up to {num_distractors} with branch_length "
            f"{branch_length} make {objects} objects to place; allowed: at most {most} with grid_size {grid_size}"
        )


def _parse(level: Mapping[str, Any], side: int) -> Array:
    """Convert a level to cell codes int8 [side, side]. Raises ValueError for an invalid level."""
    lines = level["board"]
    if [len(line) for line in lines] != [side] * side or not set("".join(lines)) <= set(_LETTERS):
        raise ValueError(f"level['board'] is {lines}; expected {side} strings of {side} of {''.join(_LETTERS)!r}")
    board = np.array([[_LETTERS[letter] for letter in line] for line in lines], np.int8)
    border = np.pad(np.zeros((side - 2, side - 2), np.bool_), 1, constant_values=True)
    border[0, 0] = False
    if board[border].any() or board[0, 0] not in (NOTHING, *range(KEY, LOCK)):
        raise ValueError(f"the border of level['board'] must be '#', with a carried key at (0, 0) or none; got {lines}")
    if (board == PLAYER).sum() != 1 or (board == GEM).sum() != 1:
        raise ValueError(f"level['board'] is {lines}; expected one player '.' and one gem '*'")
    declared = sorted(tuple(lock) for lock in (*level["solution_locks"], *level["distractor_locks"]))
    locks = [tuple(cell) for cell in np.argwhere(board >= LOCK).tolist()]
    if declared != locks:
        raise ValueError(f"solution_locks and distractor_locks are {declared}; the locks of the board are {locks}")
    for r, c in level["distractor_locks"]:
        board[r, c] += NUM_COLORS
    return board
