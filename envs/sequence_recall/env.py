"""Sequence Recall: watch lights turn on one after another, then walk to them in the same order."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.messages import check_flag, check_integer, check_numbers
from ..arrays import Array
from ..drawing import BLACK, Canvas, Color
from ..engine import BatchedEnv
from ..loops import batch_loops
from ..single import single
from ..timeout import last_frame
from . import rules
from .rules import CHARACTERS, COLS, LIGHTS, NUM_LIGHTS, ROWS, SLOTS, Params, new_state

_WALL, _FLOOR, _PLAYER = (150, 40, 200), (14, 14, 18), (0, 225, 235)
_LIT: tuple[Color, ...] = ((0, 225, 0), (240, 30, 30), (60, 90, 255), (255, 225, 0))
_UNLIT: tuple[Color, ...] = ((24, 64, 24), (72, 26, 26), (30, 36, 78), (70, 64, 22))


FEW = 100_000  # Number of sequences above which repeats are rare


class SequenceRecallBatch(BatchedEnv):
    """N games of Sequence Recall.

    Description:
        Four lights (left, top, right, bottom) surround a player in a pen. They turn on in a random sequence; then
        the pen opens, and the player must enter the lights in the same order. A light that the player enters turns on,
        correct or not, and counts as the next element of the sequence; it turns off when the player is on floor again.
        To enter the same light twice, the player must leave it in between.
        Each element of the sequence takes `demo_light_off_frames` frames without and `demo_light_on_frames` frames with
        its light; the first move takes effect in frame 362. Each of these durations, and the pause after the
        demonstration, is at least 2 frames.

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
        num_envs: number of environments.
        sequence_length: lights in the sequence.
        demo_light_on_frames: frames for which the demonstration shows a light.
        demo_light_off_frames: frames before each light of the demonstration.
        pause_frames: frames between the demonstration and the opening of the pen.
        timeout_frames: frame in which the episode ends at the latest; -1 for no timeout.
        show_sequence: always show the rest of the sequence: the memory-free twin.
        engine: "compiled", or "pycolab": a readable game with the same rules, a hundred times slower (`--env-args`).
        batch: `first_index` and `render_mode`, see BatchedEnv.

    Differences from the original: there is no action that quits the game.

    References: Stepleton et al. 2018, "Low-pass recurrent neural networks", 5.2.3 and B.3.
    """

    symbols = (
        (_PLAYER, "you"),
        (_LIT[0], "left light, on"),
        (_LIT[1], "top light, on"),
        (_LIT[2], "right light, on"),
        (_LIT[3], "bottom light, on"),
        (_UNLIT[0], "dark: a light that is off"),
        (_WALL, "wall"),
    )
    episode_fields = ("solved", "correct")
    action_names = rules.ACTION_NAMES
    level_keys = ("sequence",)
    loops = batch_loops(rules.start, rules.advance, rules.observe)
    state: rules.State
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
        for name, frames in (
            ("demo_light_on_frames", demo_light_on_frames),
            ("demo_light_off_frames", demo_light_off_frames),
            ("pause_frames", pause_frames),
        ):
            check_integer(name, frames, 0, None)
        last = last_frame(timeout_frames)
        off, on, pause = (max(2, n) for n in (demo_light_off_frames, demo_light_on_frames, pause_frames))
        demo = sequence_length * (off + on)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(0, 1, (ROWS, COLS, len(CHARACTERS)), np.uint8),
            state=new_state(num_envs, sequence_length),
            params=Params(
                sequence_length=sequence_length,
                off_frames=off,
                cycle_frames=off + on,
                demo_frames=demo,
                free_frame=demo + pause,
                timeout_frames=last,
                show_sequence=show_sequence,
            ),
            **batch,
        )

        lights = ("left", "top", "right", "bottom")
        self.fact_values = {f"light_{element}": lights for element in range(1, sequence_length + 1)} | {
            "next": (*lights, "none"),
            "lit": ("none", *lights),
            "phase": ("demonstration", "recall"),
            "correct": (),
        }

    def facts(self) -> dict[str, Array]:
        """Sequence, its next light, the light that is on, the phase, and the number of correct lights."""
        state, length = self.state, self.params.sequence_length
        padded = np.pad(state.sequence.astype(np.int64), ((0, 0), (0, 1)), constant_values=NUM_LIGHTS)
        moments = [rules.scene(state, self.params, i) for i in range(self.num_envs)]
        return {f"light_{element + 1}": padded[:, element].copy() for element in range(length)} | {
            "next": padded[np.arange(self.num_envs), state.entered],
            "lit": np.array([lit for _, _, lit, _, _ in moments], np.int64),
            "phase": (state.frame >= self.params.free_frame).astype(np.int64),
            "correct": state.correct.copy(),
        }

    def level_set(self) -> set[bytes]:
        length = self.params.sequence_length
        if NUM_LIGHTS**length > FEW:
            return set()
        return {bytes(sequence) for sequence in product(range(NUM_LIGHTS), repeat=length)}

    def level(self, index: int) -> dict[str, Any]:
        """Level of environment `index`: `{"sequence": [...]}`, lights 0 left, 1 top, 2 right, 3 bottom."""
        return {"sequence": self.state.sequence[index].tolist()}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        sequence = check_numbers("level['sequence']", level["sequence"], self.params.sequence_length, NUM_LIGHTS)
        self.state.sequence[index] = sequence
        rules.begin(self.state, self.params, index)

    def paint(self, index: int, full: bool = True) -> Canvas:
        canvas = Canvas(ROWS, COLS, cell=24, background=BLACK, caption_rows=2 if full else 0)
        board = self.observe(index).argmax(axis=2)
        for row, col in np.ndindex(ROWS, COLS):
            code, light = int(board[row, col]), int(LIGHTS[row, col]) - 1
            color = _WALL if code == rules.WALL else _FLOOR if light < 0 else _UNLIT[light]
            if rules.LIGHT <= code < rules.UNLIT:
                color = _LIT[code - rules.LIGHT]
            elif code == rules.PLAYER and self.state.lit[index]:
                color = _LIT[light]
            canvas.fill(row, col, color)
            if code == rules.PLAYER:
                canvas.disc(row, col, BLACK, 0.95)
                canvas.disc(row, col, _PLAYER, 0.8)
        if full:
            self._draw_sequence(canvas, index)
        return canvas

    def _draw_sequence(self, canvas: Canvas, index: int) -> None:
        """Draw the lights of the sequence, completed ones smaller."""
        canvas.text(ROWS + 0.5, 0.5, "sequence:", height=0.9)
        for element, light in enumerate(self.state.sequence[index][:14]):
            done = element < self.state.entered[index]
            canvas.disc(ROWS + 0.5, 5.5 + 1.1 * element, _LIT[light], 0.4 if done else 0.9)


SequenceRecall = single(SequenceRecallBatch)
