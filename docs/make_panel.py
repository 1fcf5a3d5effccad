"""Draw docs/images/panel.svg: the panel of a run as a terminal shows it, from the run's metrics.

python docs/make_panel.py RUN
"""

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from engram import Run
from engram.launch.metrics.panel import Panel

FILE = Path(__file__).parent / "images" / "panel.svg"
COLUMNS, SHOWN = 100, 0.7
"""Width, and the part of the run that is over."""


def main(run: Path) -> None:
    """Replay the first rows of the run into a panel and save what it shows."""
    config = Run(run).config
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = rows[: max(1, round(SHOWN * len(rows)))]
    now = [0.0]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    panel = Panel(config.total_steps, Path("runs/first"), config.name, console, lambda: now[0])
    panel.update(0)
    for row in rows:
        now[0] = row["wall_s"]
        panel.update(row["step"], {name: x for name, x in row["metrics"].items() if x is not None})
    console.print(panel._box())  # pyright: ignore[reportPrivateUsage]
    FILE.write_text(console.export_svg(title="rl-train"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
