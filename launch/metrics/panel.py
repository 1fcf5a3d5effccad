"""Progress display: a live panel in a terminal, one line per report anywhere else."""

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...base.errors import duration_in_words

REDRAWS_PER_SECOND = 2
LINE_SECONDS = 10.0  # Seconds between two lines without a terminal
HISTORY = 24  # Number of reports from which the speed is computed
RETURNS = {
    "return": ("episode/return", ".4g"),
    "solved": ("episode/solved", ".1%"),
    "best return": ("population/best_return", ".4g"),
}
LEARNING = {"loss": ("loss/total", ".4f"), "entropy": ("policy/entropy", ".3f"), "lag": ("perf/policy_lag", ".1f")}
SPEED = {"steps/s": ("perf/env_steps_per_second", ",.0f")}
BUSY = {"actors": "actor_busy", "learner": "learner_busy", "learner waits": "queue_wait"}
SHOWN = {
    "episodes": RETURNS | {"length": ("episode/length", ".1f")},
    "learning": LEARNING | {"gradient": ("learner/grad_norm", ".3g")},
    "speed": SPEED,
    "busy": {label: (f"perf/{name}", ".0%") for label, name in BUSY.items()},
}
"""Groups of metrics in the panel: label -> name and format."""


class Panel:
    """The progress of a run from `step` on; a context manager that restores the terminal, even after an exception.
    `time_limit`: seconds from the first update to the end; 0 sets no limit."""

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
        self._step = self._printed_step = step
        self._first_update: float | None = None
        self._metrics: dict[str, float] = {}  # Never modified, only replaced: rich's thread reads it
        self._progress: deque[tuple[float, int]] = deque(maxlen=HISTORY)
        self._printed_at = -math.inf
        self._entered = self._phase_began = self._clock()
        self._phase = "starting"  # The phase before the first update; empty from then on
        self._said, self._live = set[str](), None
        if self.console.is_interactive:
            self._live = Live(console=self.console, refresh_per_second=REDRAWS_PER_SECOND, get_renderable=self._box)

    def __enter__(self) -> "Panel":
        if self._live:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        elif self._printed_step != self._step:
            self._print_line()

    def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show `step`, and metrics by the names in docs/reference/metrics.md; omitted values stay unchanged."""
        now = self._clock()
        self._step, self._phase = step, ""
        if metrics or self._first_update is None:
            # Earlier time, in which actors start and code is compiled, does not predict the speed of training.
            self._first_update = now if self._first_update is None else self._first_update
            self._progress.append((now, step))
            self._metrics = {**self._metrics, **(metrics or {})}
        if self._live is None and metrics and now - self._printed_at >= LINE_SECONDS:
            self._print_line()

    def phase(self, text: str) -> None:
        self._phase, self._phase_began = text, self._clock()
        if self._live is None:
            self.message(text)

    def message(self, text: str, once: bool = False) -> None:
        """Print a text that stays above the panel; with `once`, unless it was printed before."""
        if once:
            if text in self._said:
                return
            self._said.add(text)
        # A file or a pipe has no width; a terminal would wrap within words.
        self.console.print(text, markup=False, highlight=False, soft_wrap=not self.console.is_terminal)

    def _print_line(self) -> None:
        self._printed_at, self._printed_step = self._clock(), self._step
        progress = f"step {self._step:,} of {self.total_steps:,} ({self._fraction:.1%})"
        values = self._values(SPEED | RETURNS | LEARNING)
        self.message("  ".join([progress, *values, f"{self._time_left()} left"]))

    def _box(self) -> Box:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="cyan", no_wrap=True)
        grid.add_column(overflow="fold")
        steps = f"{self._fraction:.1%}   {short(self._step)} of {short(self.total_steps)}"
        grid.add_row("progress", Columns([ProgressBar(1, self._fraction, width=20), Text(steps)], padding=(0, 2)))
        if self._phase:
            grid.add_row("phase", f"{self._phase}: {duration_in_words(self._clock() - self._phase_began)}")
        so_far = Text(f"{duration_in_words(self._clock() - self._entered)} so far   ")
        grid.add_row("time", so_far.append(f"{self._time_left()} left", style="bold"))
        named = {name for name, _ in SHOWN["episodes"].values()}
        fields = [name for name in self._metrics if name.startswith("episode/") and name not in named]
        others = {name.removeprefix("episode/").replace("_", " "): (name, ".3g") for name in fields}
        for label, group in (SHOWN | {"episodes": SHOWN["episodes"] | others}).items():
            if values := self._values(group):
                grid.add_row(label, Text("   ".join(values)))
        if skipped := self._metrics.get("learner/skipped", 0):
            grid.add_row("warning", Text(f"{skipped:.0f} updates were not finite and were skipped", style="bold red"))
        if self.run_path:
            grid.add_row("curves", Text(f"tensorboard --logdir {shlex.quote(str(self.run_path))}", style="dim"))
        grid.add_row("to stop", Text("Ctrl-C, which saves a checkpoint first", style="dim"))
        return Box(grid, title=Text(f" {self.title} ", style="bold"), title_align="left", border_style="dim")

    def _values(self, shown: Mapping[str, tuple[str, str]]) -> list[str]:
        values = [(label, self._metrics.get(name), form) for label, (name, form) in shown.items()]
        return [f"{label} {value:{form}}" for label, value, form in values if value is not None]

    def _time_left(self) -> str:
        """Time to the last step at the speed of recent reports, or to the time limit if that is sooner."""
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


def short(count: float) -> str:
    """A count in about four characters: 950, 12.3k, 4.56M, 2B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"
