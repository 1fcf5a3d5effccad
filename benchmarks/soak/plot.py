"""The soak in one image: what was learned, what was done to it, and the memory of all its processes.

python benchmarks/soak/plot.py [benchmarks/results/soak.json]
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def draw(result: dict[str, Any], file: Path) -> None:
    """Write the image of a result."""
    curve, memory, faults = result["curve"], result["memory"], result["faults"]
    minutes = (np.array(curve["time"]) - result["began"]) / 60
    returns = np.array([np.nan if value is None else value for value in curve["episode/return"]])
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(9, 8), sharex=True, height_ratios=[3, 1, 2])
    top.plot(minutes, returns, ".", color="0.7", markersize=3)
    window = max(len(returns) // 40, 1)
    smooth = [np.nanmean(returns[max(i - window, 0) : i + 1]) for i in range(len(returns))]
    top.plot(minutes, smooth)
    top.set_ylabel("episode return")
    names = sorted({fault["fault"] for fault in faults})
    for fault in faults:
        middle.plot([fault["t"] / 60] * 2, np.array([0, 0.8]) + names.index(fault["fault"]), color="C3", linewidth=1)
    middle.set_yticks(np.arange(len(names)) + 0.4, names, fontsize=6)
    bottom.plot([sample["t"] / 60 for sample in memory], [sample["mb"] for sample in memory], linewidth=1)
    bottom.set_ylim(bottom=0)
    bottom.set_ylabel("memory of all processes, MB")
    bottom.set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    source = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "results" / "soak.json")
    draw(json.loads(source.read_text()), source.with_suffix(".png"))
