"""Tasks and results as text."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from ...envs.tasks.registry import COMMON, TASKS, find_task, make_task, task_parameters

__all__ = ["COMMON", "list_tasks", "say_result"]


def chance_of(name: str) -> str:
    """Text on the accuracy without memory."""
    try:
        chance = make_task(name, 1).chance
    except ValueError:  # the user provides its files
        return "-"
    return f"{chance:.1%}"


def list_tasks(console: Console) -> None:
    """Every task with its question, chance, published numbers and parameters."""
    table = Table(box=None, pad_edge=False)
    for column in ("task", "source", "asks", "chance", "published", "--task-args"):
        table.add_column(column, overflow="fold")
    for name, entry in TASKS.items():
        twin = f"\n{name}-twin" if entry.twin else ""
        free = " ".join(
            key for key in task_parameters(entry) if key not in find_task(name)[1] or key in ("delay", "pairs")
        )
        table.add_row(name + twin, entry.family, entry.about, chance_of(name), entry.published, free)
    console.print(table)


def say_result(result: dict[str, Any], console: Console) -> None:
    """Result of a probe, with chance and the published value."""
    console.print(
        f"{result['task']} with {result['core']} ({result['parameters']:,} parameters in the core): "
        f"{result['updates']:,} updates in {result['minutes']:.1f} min, {result['ms_per_update']:.1f} ms each",
        highlight=False,
        soft_wrap=True,
    )
    if result["skipped"]:
        console.print(
            f"  {result['skipped']:,} of the updates were skipped: their loss or gradient was not finite "
            "(a smaller --lr helps)",
            soft_wrap=True,
        )
    for each in result["tests"]:
        label = f"{each['test']:<18}" if each["test"] else "fresh data"
        more = f", perplexity {math.exp(min(each['nats'], 700)):.3f}" if result["chance"] == 0 else ""
        console.print(
            f"  {label} {each['accuracy']:7.2%} right ({each['low']:.1%}..{each['high']:.1%}), "
            f"{each['perfect']:.1%} of sequences without a mistake{more}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"  chance     {result['chance']:7.2%}", highlight=False)
    console.print(f"  published  {result['published']}", highlight=False, soft_wrap=True)
