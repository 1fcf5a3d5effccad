"""Update the figures in docs/results.md, between two marks each, from benchmarks/results/figures.

python docs/site/figures_page.py [FIGURE ...]      all figures without a name
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import layouts
import tasks_page

from engram.base.files import replace_file
from engram.launch.figures.figure import Figure, load, names

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "benchmarks" / "results" / "figures"


def write(page: Path, results: Path, figure: Figure, documents: Mapping[str, dict[str, Any]]) -> None:
    """Replace a figure's part of the page, or append it. Raises OSError.

    Args:
        page: the page.
        results: folder with the figure's plots.
        figure: the figure.
        documents: its results by size, those of "full" among them unless the figure has tasks.
    """
    part = text(os.path.relpath(results, page.parent), figure, documents)
    replace_part(page, f"<!-- figure {figure.name} -->", part, f"<!-- end {figure.name} -->")


def text(folder: str, figure: Figure, documents: Mapping[str, dict[str, Any]]) -> str:
    """Title, plot, results with intervals, and the published results with their source.

    Args:
        folder: path of the plots relative to the page.
        figure: the figure.
        documents: its results by size.
    """
    if figure.settings["full"].curves[0].task:
        return tasks_page.text(folder, figure, documents)
    document = documents["full"]
    marks = _marks(figure, document)
    rows = [_row(name, seed, run, marks) for name, seed, run in _runs(document)]
    paper = "; ".join(f"{p.label} {p.value:g}" + (f" {p.note}" if p.note else "") for p in figure.published)
    paper = f"Paper ({document['source']}): {paper}." if paper else ""
    note = figure.settings["full"].note
    quick = (
        ["", _quick(folder, figure, documents["quick"])]
        if documents.keys() & figure.settings.keys() >= {"quick"}
        else []
    )
    return "\n".join(
        [
            f"## {figure.title}",
            "",
            f"![{figure.title}]({folder}/{figure.name}.png)",
            "",
            f"| curve | seed | {document['measure']} on fresh levels | steps | hours |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *_footnotes(marks),
            f"{paper} {note}".strip(),
            *_others(figure, document),
            "",
            f"Repeat with `rl-reproduce {figure.name}`. Stopping rule: {figure.settings['full'].stop}",
            *quick,
        ]
    )


def _quick(folder: str, figure: Figure, document: dict[str, Any]) -> str:
    """One paragraph about the easier variant; the stopping rule only if it differs."""
    runs = _runs(document)
    marks = _marks(figure, document)
    results = "; ".join(f"{name}{_mark(name, marks)} {_estimate(run)}" for name, _, run in runs)
    minutes = sum(run["seconds"] for _, _, run in runs) / 60
    setting = figure.settings["quick"]
    stop = f" Stopping rule: {setting.stop}" if setting.stop != figure.settings["full"].stop else ""
    return (
        f"Easier variant: `rl-reproduce {figure.name} --quick`, {minutes:.0f} minutes: {results} "
        f"([curves]({folder}/{figure.name}-quick.png)).{' ' + setting.note if setting.note else ''}{stop}"
        + "".join(f" {line}" for line in _others(figure, document))
    )


def _runs(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Curve, seed and results of every run."""
    curves = document["curves"].items()
    return [(name, seed, run) for name, curve in curves for seed, run in curve["runs"].items()]


def _estimate(run: dict[str, Any]) -> str:
    found = run["evaluation"]
    return f"{found['mean']:.3g} [{found['low']:.3g}, {found['high']:.3g}]" if found else "not evaluated"


def _marks(figure: Figure, document: dict[str, Any]) -> dict[str, list[str]]:
    """Kinds of affected parameters by curve; unaffected curves are absent."""
    configs = {curve.name: curve.config for curve in figure.settings[document["size"]].curves}
    shown = [(name, run) for name, _, run in _runs(document) if name in configs]
    marks = {name: kinds for name, run in shown if (kinds := layouts.affected(configs[name], run))}
    return marks


def _mark(name: str, marks: Mapping[str, list[str]]) -> str:
    return layouts.MARK if name in marks else ""


def _footnotes(marks: Mapping[str, list[str]]) -> list[str]:
    return [layouts.footnote([kind for kinds in marks.values() for kind in kinds]), ""] if marks else []


def _others(figure: Figure, document: dict[str, Any]) -> list[str]:
    """One line about other runs: those of the data file and those replaced by a later run."""
    lines = list(figure.settings[document["size"]].other_runs)
    for run in document.get("replaced", []):
        reached = _estimate(run) if run.get("evaluation") else "not evaluated"
        lines.append(f"{run['curve']}, seed {run['seed']}: {reached} after {run['steps'] / 1e6:,.1f} M steps, replaced")
    return ["Other runs: " + "; ".join(lines) + "."] if lines else []


def _row(name: str, seed: str, run: dict[str, Any], marks: Mapping[str, list[str]]) -> str:
    steps = f"{run['steps'] / 1e6:,.1f} M"
    if run["steps"] < run["planned_steps"]:
        steps += f" of {run['planned_steps'] / 1e6:,.1f} M: stopped early"
    found = run["evaluation"]
    if found and found.get("weights_step", found["step"]) < found["step"]:
        steps += f", the weights of {found['weights_step'] / 1e6:,.1f} M"
    return f"| {name}{_mark(name, marks)} | {seed} | {_estimate(run)} | {steps} | {run['seconds'] / 3600:.1f} |"


def replace_part(page: Path, begin: str, text: str, end: str) -> None:
    """Replace the text between the marks `begin` and `end` of a page, or append both. Raises OSError."""
    old, part = page.read_text(), f"{begin}\n{text}\n{end}"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    new = between.sub(lambda _: part, old) if between.search(old) else f"{old.rstrip()}\n\n{part}\n"
    replace_file(page, new.encode())


def main() -> None:
    """Update the named figures, or all."""
    for name in sys.argv[1:] or names():
        files = {"full": RESULTS / f"{name}.json", "quick": RESULTS / f"{name}-quick.json"}
        documents = {size: json.loads(file.read_text()) for size, file in files.items() if file.is_file()}
        if "full" in documents or load(name).settings["full"].curves[0].task:
            write(PAGE, RESULTS, load(name), documents)


if __name__ == "__main__":
    main()
