import io
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from engram.base.errors import duration_in_words
from engram.launch.metrics.panel import LINE_SECONDS, Panel, short

METRICS = {
    "perf/env_steps_per_second": 9820.4,
    "episode/return": 4.3125,
    "episode/solved": 0.431,
    "episode/path_length": 2.0,
    "loss/total": 0.0157,
    "policy/entropy": 0.871,
    "perf/policy_lag": 1.3,
    "perf/actor_busy": 0.98,
    "learner/skipped": 0.0,
}
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Clock:
    """A clock that advances only when the test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def report(panel: Panel, step: int, metrics: Mapping[str, float] | None = None, after: float = LINE_SECONDS) -> None:
    """Update a panel, `after` seconds later."""
    assert isinstance(panel._clock, Clock)  # pyright: ignore[reportPrivateUsage]
    panel._clock.now += after  # pyright: ignore[reportPrivateUsage]
    panel.update(step, metrics)
    refresh(panel)


def refresh(panel: Panel) -> None:
    """Redraw now; the thread of rich does so twice a second."""
    if panel._live:  # pyright: ignore[reportPrivateUsage]
        panel._live.refresh()  # pyright: ignore[reportPrivateUsage]


def plain_console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=80), out


def terminal(encoding: str = "utf-8", width: int = 80) -> tuple[Console, io.TextIOWrapper]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    return Console(file=out, width=width, height=40, force_terminal=True, _environ={"TERM": "xterm"}), out


def shown(out: io.TextIOWrapper) -> str:
    out.flush()
    return out.buffer.getvalue().decode(out.encoding)  # pyright: ignore


def last_frame(text: str) -> str:
    """The last drawn panel, without colors."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return plain[max(plain.rfind("╭"), plain.rfind("+- "), 0) :]


@pytest.mark.parametrize(("value", "text"), [(4.96e-6, "4.96e-06"), (9.93e-4, "0.000993"), (0.0, "0")])
def test_small_returns_have_significant_digits(value: float, text: str) -> None:
    console, out = plain_console()
    with Panel(1_000_000, Path("runs/a"), "boxworld", console, Clock()) as panel:
        report(panel, 250_000, {"episode/return": value})
    assert f"return {text}  " in out.getvalue()


def test_one_line_per_report_without_a_terminal() -> None:
    console, out = plain_console()
    with Panel(1_000_000, Path("runs/a"), "boxworld", console, Clock()) as panel:
        panel.message("hello [bold]you[/bold]")
        report(panel, 250_000, METRICS)
        report(panel, 260_000)
        report(panel, 500_000, {"loss/total": math.nan})
    numbers = "steps/s 9,820  return 4.312  solved 43.1%"
    assert out.getvalue().splitlines() == [
        "hello [bold]you[/bold]",
        f"step 250,000 of 1,000,000 (25.0%)  {numbers}  loss 0.0157  entropy 0.871  lag 1.3  1 min 16 s left",
        # 250,000 steps took two pauses of 10 seconds
        f"step 500,000 of 1,000,000 (50.0%)  {numbers}  loss nan  entropy 0.871  lag 1.3  40 s left",
    ]


def test_lines_are_not_too_many_and_the_last_is_shown() -> None:
    console, out = plain_console()
    with Panel(100, Path("runs/a"), "boxworld", console, Clock()) as panel:
        for step in range(1, 101):
            report(panel, step, METRICS, after=LINE_SECONDS / 40)
    assert [line.split(" of ")[0] for line in out.getvalue().splitlines()] == [
        "step 1",
        "step 41",
        "step 81",
        "step 100",
    ]


def test_the_live_panel_shows_the_run() -> None:
    console, out = terminal()
    with Panel(1_000_000, Path("runs/a"), "my [box]", console, Clock()) as panel:
        report(panel, 250_000, METRICS)
        first = last_frame(shown(out))
        panel.message("actor 1 failed")
        report(panel, 1_000_000, {"episode/return": 9.0, "episode/solved": 1.0, "learner/skipped": 2.0})
    for text in (
        "my [box]",
        "25.0%",
        "250k of 1M",
        "10 s so far",
        "1 min 16 s left",
        "43.1%",
        "tensorboard --logdir runs/a",
        "98%",
    ):
        assert text in first
    assert "path length 2" in first
    assert "not finite" not in first
    frame = last_frame(shown(out))
    for text in ("100.0%", "return 9 ", "solved 100.0%", "0 s left", "2 updates were not finite"):
        assert text in frame
    assert "actor 1 failed" in shown(out)


def test_the_terminal_is_restored_after_an_exception() -> None:
    console, out = terminal()

    def interrupted() -> None:
        with Panel(10, Path("runs/a"), "x", console, Clock()) as panel:
            report(panel, 1, METRICS)
            assert HIDE_CURSOR in shown(out)
            assert SHOW_CURSOR not in shown(out)
            print("printed by others")
            raise KeyboardInterrupt

    before = sys.stdout
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert shown(out).rindex(SHOW_CURSOR) > shown(out).rindex(HIDE_CURSOR)
    assert last_frame(shown(out)).rstrip().endswith("╯")
    assert "printed by others" in shown(out)
    assert sys.stdout is before


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_lines_never_exceed_the_terminal(width: int) -> None:
    console, out = terminal(width=width)
    with Panel(10**9, Path("runs/" + "long" * 20), "title " * 20, console, Clock()) as panel:
        report(panel, 10**8, METRICS | {"loss/policy": -1e10, "loss/value": 1e10})
    assert max(map(len, last_frame(shown(out)).splitlines())) <= width


@pytest.mark.parametrize("value", [math.nan, math.inf, -3.0, 7.0])
def test_strange_numbers_are_shown_not_fatal(value: float) -> None:
    console, out = terminal()
    with Panel(100, Path("runs/a"), "x", console, Clock()) as panel:
        report(panel, 150, dict.fromkeys(METRICS, value))
        report(panel, 150, METRICS)
    assert "100.0%" in last_frame(shown(out))
    assert "4.312" in last_frame(shown(out))


def test_before_the_first_update_the_phase_is_shown_with_its_seconds() -> None:
    console, out = terminal()
    clock = Clock()
    with Panel(100, None, "x", console, clock) as panel:
        clock.now = 3.0
        panel.phase("starting actors")
        clock.now = 15.0
        refresh(panel)
        assert "starting actors: 12 s" in last_frame(shown(out))
        clock.now = 75.0
        report(panel, 10, after=0.0)
        assert "1 min 15 s so far" in last_frame(shown(out))
        assert "starting actors" not in last_frame(shown(out))
    lines, out = plain_console()
    with Panel(100, None, "x", lines) as panel:
        panel.phase("starting actors")
    assert out.getvalue() == "starting actors\n"


def test_a_thread_redraws_the_panel() -> None:
    console, out = terminal()
    with Panel(100, None, "x", console) as panel:
        panel.update(50)
        deadline = time.monotonic() + 60
        while "50.0%" not in shown(out):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_before_the_first_report_the_time_left_is_unknown() -> None:
    console, out = terminal()
    with Panel(100, Path("runs/a"), "x", console, Clock()):
        assert "? left" in last_frame(shown(out))


def test_time_left_follows_the_speed_of_the_last_reports() -> None:
    console, out = plain_console()
    with Panel(1_000_000, Path("runs/a"), "x", console, Clock()) as panel:
        for _ in range(100):  # a slow beginning is forgotten
            report(panel, 1, METRICS, after=1000.0)
        for number in range(40):
            report(panel, 400_000 + 2000 * number, METRICS, after=2.0)
    # (1,000,000 - 478,000) steps at 1000 per second
    assert out.getvalue().splitlines()[-1].endswith("8 min 42 s left")


def test_the_first_frame_has_no_markup() -> None:
    console, out = terminal()
    with Panel(100, None, "x", console, Clock()):
        frame = last_frame(shown(out))
    assert "? left" in frame
    assert "[bold]" not in frame
    assert "tensorboard" not in frame, "there is no directory yet"


def test_what_comes_before_the_first_update_says_nothing_of_the_time_left() -> None:
    """Starting actors and compiling environments took ten minutes here, a thousand steps take a second."""
    console, out = plain_console()
    with Panel(100_000, Path("runs/a"), "x", console, Clock()) as panel:
        report(panel, 1_000, after=600.0)
        report(panel, 11_000, {"perf/env_steps_per_second": 18.0}, after=10.0)
    assert out.getvalue().splitlines()[-1].endswith("1 min 29 s left")


def test_the_time_left_honours_the_time_limit() -> None:
    console, out = plain_console()
    with Panel(10**9, Path("runs/a"), "x", console, Clock(), time_limit=102.0) as panel:
        report(panel, 1_000, after=600.0)
        report(panel, 2_000, METRICS, after=20.0)
    assert out.getvalue().splitlines()[-1].endswith("1 min 22 s left")


def test_a_run_that_goes_on_shows_at_once_where() -> None:
    console, out = terminal()
    with Panel(2_000_000, Path("runs/a"), "x", console, Clock(), step=500_000):
        frame = last_frame(shown(out))
    assert "25.0%" in frame
    assert "500k of 2M" in frame


def test_a_message_is_not_broken_inside_words() -> None:
    text = "boxworld with rmc: " + "505,805 parameters, vtrace on cpu; " * 4
    console, out = terminal(width=60)
    Panel(100, None, "x", console, Clock()).message(text)
    lines = shown(out).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(lines).split() == text.split()
    console, out = plain_console()
    Panel(100, None, "x", console, Clock()).message(text)
    assert out.getvalue().splitlines() == [text], "a file has no width"


def test_a_pipe_gets_plain_lines() -> None:
    script = (
        "from pathlib import Path; from engram.launch.metrics.panel import Panel\n"
        "with Panel(10, Path('runs/a'), 'x') as panel: panel.update(5, {'loss/total': 1.0}); panel.message('é [x]')"
    )
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "step 5 of 10 (50.0%)  loss 1.0000  ? left\né [x]\n"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (950, "950"), (12_345, "12.3k"), (4_560_000, "4.56M"), (2e9, "2B")]
)
def test_short_numbers(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (3600 * 3 + 300, "3 h 5 min"), (86400 * 3.5, "3 days 12 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_in_words(seconds) == text
