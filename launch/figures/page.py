"""The part of docs/results.md that belongs to a figure, between two marks."""

import os
import re
from pathlib import Path
from typing import Any

from ...base.files import replace_file
from .figure import Figure


def write(page: Path, picture: Path, figure: Figure, document: dict[str, Any]) -> None:
    """Put a figure's part in the place of its old one, or at the end of the page. Raises OSError."""
    begin, end = f"<!-- figure {figure.name} -->", f"<!-- end {figure.name} -->"
    part = f"{begin}\n{text(os.path.relpath(picture, page.parent), figure, document)}\n{end}"
    old = page.read_text()
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    new = between.sub(lambda _: part, old) if between.search(old) else f"{old.rstrip()}\n\n{part}\n"
    replace_file(page, new.encode())


def text(picture: str, figure: Figure, document: dict[str, Any]) -> str:
    """Title, picture, our numbers with their intervals, the paper's numbers and where they come from."""
    rows = [
        _row(name, seed, run, document["measure"])
        for name, curve in document["curves"].items()
        for seed, run in curve["runs"].items()
    ]
    paper = "; ".join(f"{p.label} {p.value:g}" + (f" {p.note}" if p.note else "") for p in figure.published)
    note = figure.settings[document["size"]].note
    size = "" if document["size"] == "full" else f" --{document['size']}"
    return "\n".join(
        [
            f"## {figure.title}",
            "",
            f"![{figure.title}]({picture})",
            "",
            f"| curve | seed | {document['measure']} on fresh levels | steps | hours |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"The paper ({document['source']}): {paper}.{' ' + note if note else ''}",
            f"Again: `rl-reproduce {figure.name}{size}`.",
        ]
    )


def _row(name: str, seed: str, run: dict[str, Any], measure: str) -> str:
    found = run["evaluation"]
    said = f"{found['mean']:.3g} [{found['low']:.3g}, {found['high']:.3g}]" if found else "not evaluated"
    steps = f"{run['steps'] / 1e6:,.1f} M"
    if run["steps"] < run["planned_steps"]:
        steps += f" of {run['planned_steps'] / 1e6:,.1f} M: stopped early"
    return f"| {name} | {seed} | {said} | {steps} | {run['seconds'] / 3600:.1f} |"
