"""Progress display: a live panel in a terminal, one line per report anywhere else."""

import math
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel as Box
from rich.table import Table
from rich.text import Text

from ...base.messages import duration_in_words

REDRAW_SECONDS = 0.5
TICK_SECONDS = 1.0  # Seconds between two updates of the clock without other changes
LINE_SECONDS = 10.0  # Seconds between two lines without a terminal
HISTORY = 24  # Number of reports in a sparkline
_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=*#"
_BAR_WIDTH = 20


class Panel:
    """Shows the progress of a run; a context manager that restores the terminal, also after an exception.

    It renders at most every REDRAW_SECONDS, in the caller's thread. A second thread renders the clock after
    TICK_SECONDS without another change; without a terminal it reports the phase every LINE_SECONDS.

    Args:
        run_path: the run's directory; None before there is one.
        console: the console to render on; standard output if None.
        clock: returns seconds since a fixed moment.
        step: step at which the run begins or resumes.
        time_limit: seconds from the first update to the end; 0 sets no limit.
    """

    ticks = True  # Whether a thread updates the clock

    def __init__(
        self,
        total_steps: int,
        run_path: Path | None,
        title: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        step: int = 0,
        time_limit: float = 0.0,
    ) -> None:
        self.total_steps, self.run_path, self.title = total_steps, run_path, title
        self.console = console or Console()
        self._clock, self._time_limit = clock, time_limit
        self._step = step
        self._first_update: float | None = None
        self._metrics: dict[str, float] = {}
        self._returns: deque[float] = deque(maxlen=HISTORY)
        self._solved: deque[float] = deque(maxlen=HISTORY)
        self._progress: deque[tuple[float, int]] = deque(maxlen=HISTORY)
        self._rendered_at, self._rendered_step = -math.inf, step
        self._entered = self._phase_began = self._clock()
        self._phase = "starting"  # The phase before the first update; empty from then on
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_interactive else None
        self._lock, self._over = threading.RLock(), threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "Panel":
        if self._live:
            self._live.start()
            self._draw()
        if self.ticks:
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._ticker.is_alive():
            self._ticker.join()
        try:
            if self._live or self._rendered_step != self._step:
                self._refresh()
                self._draw()
        finally:
            if self._live:
                self._live.stop()

    def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show `step`, and metrics by the names of docs/reference/metrics.md; omitted values stay unchanged."""
        with self._lock:
            self._note(step, metrics)
            pause = REDRAW_SECONDS if self._live else LINE_SECONDS
            if (metrics or self._live) and self._clock() - self._rendered_at >= pause:
                self._refresh()
                self._draw()

    def phase(self, text: str) -> None:
        """Show a phase before the first update, with its duration."""
        with self._lock:
            self._phase, self._phase_began = text, self._clock()
            if self._live:
                self._draw()

    def message(self, text: str) -> None:
        """Show a permanent text above the panel."""
        # A file or a pipe has no width; a terminal would wrap in the middle of words.
        self.console.print(text, markup=False, highlight=False, soft_wrap=not self.console.is_terminal)

    def _note(self, step: int, metrics: Mapping[str, float] | None) -> None:
        self._step, self._phase = step, ""
        if self._first_update is None:
            # The time before the first update, in which actors start and environments and cores are compiled, does not
            # predict the speed of training.
            self._first_update = self._clock()
            self._progress.append((self._first_update, step))
        if metrics:
            self._metrics |= metrics
            self._progress.append((self._clock(), step))
            for history, name in ((self._returns, "episode/return"), (self._solved, "episode/solved")):
                if math.isfinite(metrics.get(name, math.nan)):
                    history.append(metrics[name])

    def _tick(self) -> None:
        while not self._over.wait(TICK_SECONDS if self._live else LINE_SECONDS):
            with self._lock:
                if self._over.is_set():
                    return
                if self._live and self._clock() - self._rendered_at >= TICK_SECONDS:
                    self._draw()
                elif self._phase and not self._live:
                    self.message(self._phase_row())

    def _refresh(self) -> None:
        """Update the panel's state; called in the caller's thread before it renders."""

    def _draw(self) -> None:
        self._rendered_at, self._rendered_step = self._clock(), self._step
        if self._live:
            self._live.update(self._box(), refresh=True)
        else:
            self.message(self._line())

    # -- content -----------------------------------------------------------------------------------------------------

    def _line(self) -> str:
        """The state of the run in one line."""
        parts = [f"step {self._step:,} of {self.total_steps:,} ({self._fraction:.1%})"]
        parts += [text for text in (self._value(*shown) for shown in _LINE) if text]
        return "  ".join([*parts, f"{self._time_left()} left"])

    def _box(self) -> Box:
        """The state of the run as a panel."""
        title = Text(f" {self.title} ", style="bold")
        return Box(self._content(), title=title, title_align="left", border_style="dim")

    def _content(self) -> RenderableType:
        """Lines of the panel."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="cyan", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("progress", self._progress_row())
        so_far = Text(f"{duration_in_words(self._clock() - self._entered)} so far   ")
        if self._phase:
            grid.add_row("phase", self._phase_row())
        grid.add_row("time", so_far.append(f"{self._time_left()} left", style="bold"))
        others = [name for name in self._metrics if name.startswith("episode/") and name not in _SHOWN_EPISODE]
        own = tuple((name.removeprefix("episode/").replace("_", " "), name, ".3g") for name in others)
        for label, values in (*_EPISODE_ROWS, ("", own), *_ROWS):
            shown = [text for text in (self._value(*value) for value in values) if text]
            if shown:
                grid.add_row(label, Text("   ".join(shown)))
        skipped = self._metrics.get("learner/skipped", 0)
        if skipped:
            grid.add_row("warning", Text(f"{skipped:.0f} updates were not finite and were skipped", style="bold red"))
        if self.run_path:
            grid.add_row("curves", Text(f"tensorboard --logdir {shlex.quote(str(self.run_path))}", style="dim"))
        grid.add_row("to stop", Text("Ctrl-C, which saves a checkpoint first", style="dim"))
        return grid

    def _phase_row(self) -> str:
        return f"{self._phase}: {duration_in_words(self._clock() - self._phase_began)}"

    def _progress_row(self) -> Text:
        full = int(self._fraction * _BAR_WIDTH)
        done, rest = "█░" if self._unicode else "#."
        row = Text().append(done * full, style="green").append(rest * (_BAR_WIDTH - full), style="bright_black")
        row.append(f"  {self._fraction:.1%}   {short(self._step)} of {short(self.total_steps)}")
        return row

    def _value(self, label: str, name: str, form: str) -> str:
        """`label value`, with a sparkline if there is a history; empty if the metric has no value yet."""
        if name not in self._metrics:
            return ""
        text = f"{label} {format(self._metrics[name], form)}"
        if form == ".3f" and 0 < abs(self._metrics[name]) < 0.1:  # rewards may be small
            text = f"{label} {self._metrics[name]:.3g}"
        if self._live and name == "episode/return":
            return f"{text} {self._sparkline(self._returns, *_range(self._returns))}"
        if self._live and name == "episode/solved":
            return f"{text} {self._sparkline(self._solved, 0.0, 1.0)}"
        return text

    def _sparkline(self, values: deque[float], low: float, high: float) -> str:
        blocks = _BLOCKS if self._unicode else _ASCII_BLOCKS
        scale = (len(blocks) - 1) / (high - low or 1.0)
        return "".join(blocks[min(max(round((x - low) * scale), 0), len(blocks) - 1)] for x in values)

    def _time_left(self) -> str:
        """Time to the last step at the speed of the last reports, or to the time limit if that is sooner."""
        (begin, first), (end, last) = (self._progress[0], self._progress[-1]) if self._progress else ((0, 0), (0, 0))
        speed = (last - first) / (end - begin) if end > begin else self._metrics.get("perf/env_steps_per_second", 0.0)
        left = max(self.total_steps - self._step, 0) / speed if speed > 0 else math.inf
        if self._time_limit:
            used = 0.0 if self._first_update is None else self._clock() - self._first_update
            left = min(left, max(self._time_limit - used, 0.0))
        return duration_in_words(left) if left < math.inf else "?"

    @property
    def _fraction(self) -> float:
        return min(self._step / self.total_steps, 1.0)

    @property
    def _unicode(self) -> bool:
        return self.console.encoding.startswith("utf")


_Shown = tuple[str, str, str]  # Label, name of the metric, format


def _shown(text: str) -> tuple[_Shown, ...]:
    """Parts `label metric format`, separated by commas; the label may contain spaces."""
    parts = [part.rsplit(" ", 2) for part in text.split(", ")]
    return tuple((label, metric, form.replace("k", ",.0f")) for label, metric, form in parts)


_LINE = _shown(
    "steps/s perf/env_steps_per_second k, return episode/return .3f, solved episode/solved .1%, loss loss/total .4f, "
    "entropy policy/entropy .3f, lag perf/policy_lag .1f"
)
_EPISODE_ROWS = (
    ("episodes", _shown("return episode/return .3f, length episode/length .1f")),
    ("", _shown("solved episode/solved .1%")),
)
_SHOWN_EPISODE = ("episode/return", "episode/length", "episode/solved")
_ROWS = (
    ("loss", _shown(", ".join(f"{name} loss/{name} .4f" for name in ("policy", "value", "entropy", "total")))),
    ("policy", _shown("entropy policy/entropy .3f, clipped ratios vtrace/rho_clip_rate .0%, lag perf/policy_lag .1f")),
    ("speed", _shown("steps/s perf/env_steps_per_second k, gradient learner/grad_norm .3g")),
    ("busy", _shown("actors perf/actor_busy .0%, learner perf/learner_busy .0%, learner waits perf/queue_wait .0%")),
)


def _range(values: deque[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (0.0, 1.0)


def short(number: float) -> str:
    """A count in about four characters: 950, 12.3k, 4.56M, 2B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
