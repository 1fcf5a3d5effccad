"""Proofs from the soak's ledger: every step counted once, no unroll trained twice, no counter that goes back."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple


def entries(file: Path) -> list[dict[str, Any]]:
    """The ledger's lines; one that a killed process left unfinished is left out."""
    if not file.exists():
        return []
    result: list[dict[str, Any]] = []
    for line in file.read_bytes().split(b"\n"):
        try:
            result.append(json.loads(line))
        except ValueError:
            continue
    return result


class Update(NamedTuple):
    """One update that the run's weights come from."""

    number: int
    steps: int
    """Consumed since the beginning of the run."""
    columns: dict[str, int]
    """How many columns of which unrolls it was made of."""


def verdict(file: Path, envs_per_actor: int) -> dict[str, Any]:
    """Counts and the list of errors, which must be empty.

    A life is what one process trained. It begins at a checkpoint, which must be a state that was really reached; what
    came after that checkpoint in earlier lives was rolled back and is no longer part of the run. (Two lives that begin
    at the same checkpoint may draw the same unroll, as they have the same seed; only one of them is part of the run.)
    """
    errors: list[str] = []
    run = [Update(0, 0, {})]
    lives = rolled_back = 0
    for entry in entries(file):
        if "begin" in entry:
            lives += 1
            keep = next((i for i, each in enumerate(run, 1) if [each.number, each.steps] == entry["begin"]), None)
            if keep is None:
                errors.append(f"life {lives} begins at {entry['begin']}, where the run never was")
                continue
            rolled_back += len(run) - keep
            del run[keep:]
        else:
            now, last = Update(*entry["at"], entry["columns"]), run[-1]
            if (now.number, now.steps) != (last.number + 1, last.steps + entry["counted"]):
                errors.append(f"update {now.number} at {now.steps} follows {last.number} at {last.steps}")
            run.append(now)
    columns: Counter[str] = Counter()
    for update in run:
        columns.update(update.columns)
    twice = [name for name, count in columns.items() if count > envs_per_actor]
    errors += [f"unroll {name}: {columns[name]} columns trained" for name in twice]
    return {
        "lives": lives,
        "updates": run[-1].number,
        "steps": run[-1].steps,
        "updates_rolled_back": rolled_back,
        "unrolls": len(columns),
        "unrolls_trained_twice": len(twice),
        "num_errors": len(errors),
        "errors": errors[:20],
    }
