"""rl-play in a pseudo-terminal, what it writes and reads, and how canvases become characters."""

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.style import Style
from rich.text import Text

from engram.base.errors import EngramError
from engram.envs.drawing import WHITE, Canvas, mosaic
from engram.envs.registration import environment_names, make_batch
from engram.launch.play.command import UPPER_HALF, Game, main, render, style, with_legend
from engram.launch.play.command import Terminal as Screen

RED, BLUE = (255, 0, 0), (0, 0, 255)
PATIENCE = 240.0
"""Seconds that a busy machine may take to start a process and compile a game."""
UP, DOWN, LEFT, RIGHT = b"\033OA", b"\033OB", b"\033OD", b"\033OC"


class Terminal:
    """rl-play in a pseudo-terminal of 24 lines and 80 columns."""

    def __init__(self, *words: str, terminal: str = "xterm-256color") -> None:
        self.end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [sys.executable, "-c", "from engram.launch.entry import rl_play; rl_play()", *words]
        environment = os.environ | {"TERM": terminal, "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
        os.close(other)
        self.shown = b""

    def press(self, *keys: bytes) -> None:
        for key in keys:
            os.write(self.end, key)

    def wait_for(self, text: str) -> None:
        """Read until `text` has been shown after all that was waited for before."""
        limit = time.monotonic() + PATIENCE
        while text.encode() not in self.shown:
            assert time.monotonic() < limit, f"{text!r} was not shown, but {self.shown[-2000:]!r}"
            if select.select([self.end], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self.end, 1 << 16)
                except OSError:  # the other end is closed
                    assert text.encode() in self.shown, self.shown[-2000:]
        self.shown = self.shown.partition(text.encode())[2]

    def close(self) -> int:
        """Read what is left and wait for the end: the exit code."""
        limit = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < limit:
            if select.select([self.end], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self.end, 1 << 16)
                except OSError:
                    break
        code = self.process.wait(PATIENCE)
        os.close(self.end)
        return code


def scores_by_hand(name: str, seed: int, actions: list[int]) -> float:
    batch = make_batch(name, 1)
    batch.reset(seed=seed)
    return sum(float(batch.step(np.array([action]))[1][0]) for action in actions)


def test_a_person_plays_and_the_game_is_recorded(tmp_path):
    file = tmp_path / "game.json"
    terminal = Terminal("maze", "--seed", "3", "--record", str(file), "--env-args", "num_steps=6", "size=9")
    terminal.wait_for("the agent's observation")
    terminal.wait_for("arrows move")
    # x means nothing, v changes the view, and after the end only n goes on
    terminal.press(UP, RIGHT, b"s", b"a", b"x", b"v", LEFT, LEFT, UP, b"n", DOWN, b"q")
    terminal.wait_for("the end (successes")
    terminal.wait_for("game 2: score")
    assert terminal.close() == 0
    saved = json.loads(file.read_text())
    assert saved["actions"] == [0, 3, 1, 2, 2, 2, 0, 1]
    assert (saved["env"], saved["seed"], saved["env_args"]) == ("maze", 3, {"num_steps": 6, "size": 9})
    assert len(saved["scores"]) == 1


@pytest.mark.nightly
def test_a_terminal_with_few_colors():
    terminal = Terminal("mini-pacman", terminal="xterm")
    terminal.wait_for("arrows move")
    terminal.press(b"q")
    assert terminal.close() == 0


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"\033[5~q", ["\033[5~", "q"]),  # page up
        (b"\033[H\033OP", ["\033[H", "\033OP"]),  # home, F1
        (b"\033[1;2Ax\033OD", ["up", "x", "left"]),  # an arrow with shift
        (b"\033", ["\033"]),
    ],
)
def test_a_key_of_several_bytes_is_one_key_and_not_escape(typed, keys, monkeypatch):
    read, write = os.pipe()
    with os.fdopen(read) as end, os.fdopen(write, "wb") as other:
        monkeypatch.setattr(sys, "stdin", end)
        other.write(typed)
        other.flush()
        screen = Screen()
        assert [screen.key(0) for _ in keys] == keys
        assert screen.key(0) == ""


def test_actions_beyond_nine_are_typed_digit_by_digit(tmp_path):
    terminal = Terminal("popgym-battleship", "--env-args", "difficulty=medium", "--record", str(tmp_path / "game"))
    terminal.wait_for("digits __ act")
    terminal.press(*(bytes([digit]) for digit in b"0799x4"), b"q")  # the last number is incomplete
    assert terminal.close() == 0
    assert json.loads((tmp_path / "game").read_text())["actions"] == [7, 99]


def test_purpose_and_symbols_are_on_the_screen_and_compiling_comes_before_it():
    terminal = Terminal("sequence-recall")
    terminal.wait_for("rl-play: compiling sequence-recall, once, up to ")
    terminal.wait_for("Sequence Recall")
    terminal.wait_for("top light, on")
    terminal.wait_for("arrows move")
    terminal.press(b"q")
    assert terminal.close() == 0


def test_an_agent_plays_pauses_changes_speed_and_hands_over(tmp_path):
    file = tmp_path / "game.json"
    terminal = Terminal("zoo:graph-fwm", "--record", str(file))
    terminal.wait_for("the agent waits")
    terminal.press(b"n", b"n", b"2", b"0")  # the agent's actions, then the user's
    terminal.press(b"+", b"+", b"+", b"+", b"+", b"+", b" ")
    terminal.wait_for("(successes")  # letters before it that the line had already are not sent again
    terminal.press(b"q")
    assert terminal.close() == 0
    saved = json.loads(file.read_text())
    assert saved["actions"][2:4] == [2, 0]
    assert len(saved["actions"]) >= 30


@pytest.mark.nightly
def test_the_agent_of_a_run_that_is_none_is_refused(tmp_path):
    terminal = Terminal(str(tmp_path))
    terminal.wait_for("rl-play: ")
    assert terminal.close() == 2
    assert b"Traceback" not in terminal.shown
    assert str(tmp_path).encode() in terminal.shown


def test_the_first_key_compiles_nothing():
    code = (
        "from engram.launch.play.command import Game; g = Game('maze', {}, 0); g.begin();"
        "step = g.batch.loops.step; n = len(step.signatures); g.act(0); assert n == len(step.signatures) > 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("name", environment_names())
def test_the_legend_is_next_to_the_board_in_80x24(name):
    batch = make_batch(name, 1)
    batch.reset(seed=0)
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(with_legend(batch.paint(0, False), batch.symbols, 18, 79))
    shown = console.file.getvalue()
    assert len(shown.splitlines()) <= 18
    assert batch.symbols
    assert all(text in shown for _, text in batch.symbols)
    assert "Rewards:" in type(batch).__doc__


def test_a_board_that_needs_the_width_has_no_legend():
    assert isinstance(with_legend(Canvas(4, 69, 4), [(RED, "rewards")], 10, 80), Text)


@pytest.mark.parametrize("name", ["maze", "pomdp-graph"])
def test_scores_are_sums_of_rewards(name):
    game = Game(name, {}, 5)
    game.begin()
    actions = np.random.default_rng(1).integers(3, size=40).tolist()
    for action in actions:
        game.act(action)
    assert sum(game.scores) + game.score == pytest.approx(scores_by_hand(name, 5, actions), abs=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["boxwurld"], "unknown environment 'boxwurld'; did you mean: boxworld"),
        (["CartPole-v1"], "unknown environment 'CartPole-v1'"),
        (["maze", "--env-args", "sise=9"], "[Mm]aze has no parameter 'sise'; did you mean: size"),
        (["maze"], "playing needs a terminal"),
        (["maze", "--ful"], "unknown flag '--ful'; did you mean: --full"),
    ],
)
def test_mistakes_are_told(words, message, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(ValueError, match=message):
        main(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["maze", "--seed", "-1"], "seed is -1"),
        (["maze", "--record", "/"], "record is '/', which is a directory"),
        (["maze", "--record", "/nowhere/at/all"], "there is no directory '/nowhere/at'"),
        (["zoo:graph-fwm", "--member", "-2"], "member is -2"),
    ],
)
def test_bad_values_are_told(words, message):
    with pytest.raises(EngramError, match=re.escape(message)):
        main(words)


def lines_of(text: Text) -> list[list[tuple[str, Style]]]:
    """Every character of a text with its style, by line."""
    styles = [style for span in text.spans for style in [span.style] * (span.end - span.start)]
    characters = [character for character in text.plain if character != "\n"]
    pairs = iter(list(zip(characters, styles, strict=True)))
    return [[next(pairs) for _ in line] for line in text.plain.split("\n")]


def test_a_character_shows_two_pixels():
    canvas = Canvas(2, 3, 10, background=WHITE)
    for col in range(2):
        canvas.fill(0, col, RED)
    canvas.disc(0, 1, BLUE)
    lines = lines_of(render(canvas, 12, 40))  # 12 pixels per cell
    assert [len(line) for line in lines] == [36] * 12
    assert lines[0][0] == (UPPER_HALF, style(RED, RED))
    assert lines[3][18] == (UPPER_HALF, style(BLUE, BLUE))
    assert lines[5][0] == (UPPER_HALF, style(RED, RED))
    assert lines[6][0] == (UPPER_HALF, style(WHITE, WHITE))
    split = lines_of(render(canvas, 12, 15))  # 5 pixels per cell: the floor ends within a character
    assert split[2][0] == (UPPER_HALF, style(RED, WHITE))


def test_what_does_not_fit_is_shown_smaller():
    colors = np.zeros((40, 200, 3), np.uint8)
    colors[:, 100:] = RED
    lines = lines_of(render(mosaic(colors, 4), 20, 60))
    assert len(lines) <= 20
    assert {len(line) for line in lines} == {60}
    assert lines[3][10] == (UPPER_HALF, style((0, 0, 0), (0, 0, 0)))
    assert lines[3][50] == (UPPER_HALF, style(RED, RED))


def test_texts_lie_above_the_image():
    canvas = Canvas(4, 4, 10, background=WHITE)
    for row, col in np.ndindex(2, 2):
        canvas.fill(1 + row, 1 + col, RED)
    canvas.text(1.5, 1.75, "A", BLUE)
    assert lines_of(render(canvas, 4, 8))[2][4] == ("A", style(BLUE, RED))
