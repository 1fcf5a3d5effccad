"""Sequence Recall: watch lights turn on one after another, then walk to them in the same order.

Until the pen opens, the lights are a function of the frame number. From frame `free_frame` on, a light is on from the
step on which the player enters it until the player is on the floor; the next light counts one frame later at the
earliest.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ..base.compiled import kernel
from ..base.errors import check_flag, check_integer, check_numbers
from .arrays import Array, zeroed
from .drawing import BLACK, Canvas, Color, mosaic
from .engine import BatchedEnv, batch_loops
from .parts import last_frame, paint
from .randomness import integer
from .single import single

ROWS, COLS = 17, 21
CHARACTERS = " #1234MP"  # Of the planes
NOTHING, WALL, LIGHT, UNLIT, PLAYER = 0, 1, 2, 6, 7  # Planes; LIGHT is that of the left light, the other three follow.
LIGHT_NAMES = ("left", "top", "right", "bottom")
NUM_LIGHTS = len(LIGHT_NAMES)
_DOWN, _RIGHT = np.array([-1, 1, 0, 0, 0]), np.array([0, 0, -1, 1, 0])
START = (8, 10)
SLOTS = COLS - 2  # Cells of the upper wall on which the twin shows the sequence
STEP_REWARD, RIGHT_LIGHT_REWARD = -0.005, 1.0
FEW = 100_000  # Number of sequences above which repeats are rare
_LIT = (0, 225, 0), (240, 30, 30), (60, 90, 255), (255, 225, 0)
_COLORS: tuple[Color, ...] = (BLACK, (150, 40, 200), *_LIT, (60, 60, 60), (0, 225, 235))  # Colors of the planes


LIGHTS = np.zeros((ROWS, COLS), np.int64)  # The light of each cell: 0 none, 1 left, 2 top, 3 right, 4 bottom
for _light, (_row, _col) in enumerate(((8, 4), (3, 10), (8, 16), (13, 10)), start=1):
    LIGHTS[_row - 1 : _row + 2, _col - 3 : _col + 4] = _light
    LIGHTS[_row - 2 : _row + 3, _col - 1 : _col + 2] = _light


def _boards() -> Array:
    """Planes without the player, uint8 [2, 5, 17, 21, 8]: with and without the pen, with no light or one light on."""
    codes = np.zeros((2, NUM_LIGHTS + 1, ROWS, COLS), np.int64)
    codes[:, :, [0, -1]] = codes[:, :, :, [0, -1]] = WALL
    codes[0, :, START[0] - 1 : START[0] + 2, START[1] - 1 : START[1] + 2] = WALL
    for light in range(1, NUM_LIGHTS + 1):
        codes[:, :, LIGHTS == light] = UNLIT
        codes[:, light, LIGHTS == light] = LIGHT + light - 1
    return np.eye(len(CHARACTERS), dtype=np.uint8)[codes]


_BOARDS = _boards()


class State(NamedTuple):
    """N games; L = sequence_length."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    frame: Array  # int64 [N]: 0 at the first observation
    sequence: Array  # int8 [N, L]: the lights to be entered, 0 left, 1 top, 2 right, 3 bottom
    row: Array  # int64 [N]: position of the player
    col: Array  # int64 [N]: position of the player
    lit: Array  # int64 [N]: the light that the player has turned on, 0 none, else 1 + the light
    entered: Array  # int64 [N]: lights entered so far, correct or not
    correct: Array  # int64 [N]: correct elements
    deadline: Array  # int64 [N]: frame at which the episode ends
    solved: Array  # bool [N]: the complete sequence was correct


class Params(NamedTuple):
    sequence_length: int
    off_frames: int
    cycle_frames: int  # Frames of an element: first all lights are off, then one is on
    demo_frames: int  # Frames until the last light of the demonstration is off
    free_frame: int  # First frame at which the player can move
    timeout_frames: int  # `timeout.NEVER` for none
    show_sequence: bool


@kernel
def start(state: State, params: Params, i: int) -> None:
    for element in range(params.sequence_length):
        state.sequence[i, element] = integer(state.random, i, NUM_LIGHTS)
    begin(state, params, i)


@kernel
def begin(state: State, params: Params, i: int) -> None:
    state.frame[i], state.row[i], state.col[i] = 0, START[0], START[1]
    state.lit[i], state.entered[i], state.correct[i] = 0, 0, 0
    state.deadline[i], state.solved[i] = params.timeout_frames, False


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    frame, row, col, lit = state.frame[i] + 1, state.row[i], state.col[i], state.lit[i]
    entered, correct, deadline = state.entered[i], state.correct[i], state.deadline[i]
    over = frame >= deadline
    reward = STEP_REWARD if frame > 1 and not over else 0.0
    if frame >= params.free_frame and entered < params.sequence_length:
        row = min(max(row + _DOWN[action], 1), ROWS - 2)
        col = min(max(col + _RIGHT[action], 1), COLS - 2)
        light = LIGHTS[row, col]
        if lit == 0 and light > 0:
            right = state.sequence[i, entered] == light - 1
            lit, entered, correct = light, entered + 1, correct + right
            reward += RIGHT_LIGHT_REWARD if right else 0.0
            if entered == params.sequence_length and frame + 1 < deadline:
                deadline = frame + 3  # two more frames have a cost; the third ends the game, even after the timeout
        elif lit > 0 and light == 0:
            lit = 0
    state.row[i], state.col[i], state.lit[i], state.entered[i] = row, col, lit, entered
    state.correct[i], state.solved[i] = correct, correct == params.sequence_length
    state.frame[i], state.deadline[i] = frame, deadline
    return reward, over, False


@kernel
def visible_light(state: State, params: Params, i: int) -> int:
    """Return the light that is on in environment i: 0 none, else 1 + the light."""
    frame = state.frame[i]
    element = min(frame // params.cycle_frames, params.sequence_length - 1)
    demonstrated = frame - element * params.cycle_frames >= params.off_frames and frame < params.demo_frames
    return state.sequence[i, element] + 1 if demonstrated else state.lit[i]


@kernel
def observe(state: State, params: Params, i: int, planes: Array) -> None:
    board = _BOARDS[np.intp(state.frame[i] >= params.free_frame), visible_light(state, params, i)]
    for r in range(ROWS):
        for c in range(COLS):
            for plane in range(8):
                planes[r, c, plane] = board[r, c, plane]
    if params.show_sequence:
        width = SLOTS // params.sequence_length
        for element in range(state.entered[i], params.sequence_length):
            paint(planes, 0, 1 + element * width, 1, width, WALL, LIGHT + state.sequence[i, element])
    for plane in range(8):
        planes[state.row[i], state.col[i], plane] = plane == PLAYER


class SequenceRecallBatch(BatchedEnv):
    """N games of Sequence Recall.

    Four lights (left, top, right, bottom) surround a player in a pen. They turn on in a random sequence; then the pen
    opens, and the player must enter the lights in the same order. A light that the player enters turns on, correct or
    not, and counts as the next element of the sequence; it turns off when the player is on floor again.
    Each element takes `demo_light_off_frames` frames without and `demo_light_on_frames` frames with its light; the
    first move takes effect in frame 362. These durations and the pause after them are at least 2 frames.

    Actions: 0 up, 1 down, 2 left, 3 right, 4 stay; the player cannot move before the pen opens or after the last light.
    Observations:
        uint8 [17, 21, 8], binary; one plane for each of the characters " #1234MP", in this order: nothing, wall (the
        pen looks like one), the lights left, top, right, bottom when on, any unlit light, player. Every
        cell shows only the topmost character.
        `show_sequence=True`, the memory-free twin: the upper wall also shows those lights of the sequence that remain
        to be entered, in columns 1 + kw to kw + w for element k, with w = 19 // sequence_length; the leftmost is next.

    Start: the player in the pen in the middle (8, 10); a sequence of independent, uniform lights.
    Rewards: 1 for entering the light that is next in the sequence; -0.005 in every frame from frame 2 on, except the
        last. At best 4 - 0.005 (362 + moves), 2.1105 on average over the 256 sequences; waiting for the timeout -4.99,
        random play -1.14.
    Episode end: terminated three frames after the last light was entered, or at frame `timeout_frames` (one later if
        the last light was entered in frame timeout_frames - 2).
    Info: `solved` (the complete sequence was correct), `correct` (correct elements).

    Args:
        sequence_length: lights in the sequence.
        demo_light_on_frames: frames for which the demonstration shows a light.
        demo_light_off_frames: frames before each light of the demonstration.
        pause_frames: frames between the demonstration and the opening of the pen.
        timeout_frames: frame in which the episode ends at the latest; -1 for no timeout.
        show_sequence: always show the rest of the sequence: the memory-free twin.
        engine: "compiled", or "pycolab": a readable game with the same rules, a hundred times slower (`--env-args`).

    Differences from the original: no action quits the game.
    References: Stepleton et al. 2018, "Low-pass recurrent neural networks", 5.2.3 and B.3.
    """

    symbols = (
        (_COLORS[PLAYER], "you"),
        *zip(_COLORS[LIGHT:UNLIT], (f"{name} light, on" for name in LIGHT_NAMES), strict=True),
        (_COLORS[UNLIT], "a light that is off"),
        (_COLORS[WALL], "wall"),
    )
    episode_fields = ("solved", "correct")
    action_names = ("up", "down", "left", "right", "stay")
    level_keys = ("sequence",)
    loops = batch_loops(start, advance, observe)
    state: State
    params: Params

    def __init__(
        self,
        num_envs: int,
        *,
        sequence_length: int = 4,
        demo_light_on_frames: int = 60,
        demo_light_off_frames: int = 30,
        pause_frames: int = 1,
        timeout_frames: int = 1000,
        show_sequence: bool = False,
        **batch: Any,
    ) -> None:
        check_flag("show_sequence", show_sequence)
        check_integer("sequence_length", sequence_length, 1, SLOTS if show_sequence else None)
        check_integer("demo_light_on_frames", demo_light_on_frames, 0, None)
        check_integer("demo_light_off_frames", demo_light_off_frames, 0, None)
        check_integer("pause_frames", pause_frames, 0, None)
        last = last_frame(timeout_frames)
        off, on, pause = (max(2, n) for n in (demo_light_off_frames, demo_light_on_frames, pause_frames))
        demo = sequence_length * (off + on)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (ROWS, COLS, len(CHARACTERS)), np.uint8),
            state=zeroed(State, num_envs, sequence=(np.int8, sequence_length)),
            params=Params(sequence_length, off, off + on, demo, demo + pause, last, show_sequence),
            **batch,
        )
        self.fact_values = {f"light_{element}": LIGHT_NAMES for element in range(1, sequence_length + 1)} | {
            "next": (*LIGHT_NAMES, "none"),
            "lit": ("none", *LIGHT_NAMES),
            "phase": ("demonstration", "recall"),
            "correct": (),
        }

    def fact_columns(self) -> list[Array]:
        state = self.state
        padded = np.pad(state.sequence, ((0, 0), (0, 1)), constant_values=NUM_LIGHTS)
        lit = np.array([visible_light(state, self.params, i) for i in range(self.num_envs)])
        recall = state.frame >= self.params.free_frame
        return [*state.sequence.T, padded[np.arange(self.num_envs), state.entered], lit, recall, state.correct]

    def level_set(self) -> set[bytes]:
        length = self.params.sequence_length
        few = NUM_LIGHTS**length <= FEW
        return {bytes(sequence) for sequence in product(range(NUM_LIGHTS), repeat=length)} if few else set()

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: `{"sequence": [...]}`, lights 0 left, 1 top, 2 right, 3 bottom."""
        return {"sequence": self.state.sequence[index].tolist()}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        length = self.params.sequence_length
        self.state.sequence[index] = check_numbers("level['sequence']", level["sequence"], length, NUM_LIGHTS)
        begin(self.state, self.params, index)

    def paint(self, index: int, full: bool = True) -> Canvas:
        planes = np.zeros((ROWS, COLS, len(CHARACTERS)), np.uint8)
        observe(self.state, self.params._replace(show_sequence=full or self.params.show_sequence), index, planes)
        return mosaic(np.array(_COLORS)[planes.argmax(2)])


SequenceRecall = single(SequenceRecallBatch)
