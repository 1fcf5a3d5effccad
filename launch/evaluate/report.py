"""Results of an evaluation as plain values for JSON."""

from typing import Any

import numpy as np

from .episodes import Group, Summary


def plain(group: Group) -> dict[str, Any]:
    """A group for JSON, which has no nan."""
    estimates = {
        name: {key: round(x, 6) if np.isfinite(x) else None for key, x in estimate._asdict().items()}
        for name, estimate in group.estimates.items()
    }
    return {"episodes": group.episodes} | estimates


def plain_member(number: int, summary: Summary) -> dict[str, Any]:
    """The results of a member, of all episodes and of those of each kind of level."""
    split = {name: {k: plain(group) for k, group in groups.items()} for name, groups in summary.split.items()}
    return {"member": number, "all": plain(summary.all), "split": split}
