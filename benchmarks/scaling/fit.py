"""Fit the model of `model.py` to half of the measured points, predict the others, and extrapolate.

    python benchmarks/scaling/fit.py [--name scaling]

Reads benchmarks/results/scaling.json; writes scaling-model.json and docs/images/scaling.png. The band of the plot
contains 90% of models that were fitted to random halves of the points, each with an error as large as that of
predictions for twice the hosts that a model was fitted to.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from engram.launch.metrics.provenance import provenance
from model import Parts, Point, fit, steps_per_second, terms

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HALVES = 60
"""Random halves that the band is made from."""
CASE = "boxworld-lstm"
HOSTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTH = 32
"""Environments per host in the extrapolation."""
LATENCY = 1e-4
GPUS, HOST_CORES = 64, 16
GPU_ENVIRONMENTS = 1024
"""Of each GPU's share of an update."""
GPU_SECONDS, GPU_REDUCE = 0.03, 1e-3
"""Assumed, not measured: an update of 1,024 environments on one GPU, and NCCL's reduction of 4 MB between 64."""


def read(name: str) -> tuple[dict[str, Parts], list[Point], NDArray[np.float64]]:
    """Parts of every case, points, and their speeds."""
    content = json.loads((RESULTS / f"{name}.json").read_text())
    parts = {case: Parts(measured, content["exchanges"]) for case, measured in content["parts"].items()}
    points: list[Point] = []
    for row in content["training"]:
        learners = 1 if row["series"] == "actors" else row["hosts"]
        width, cores, latency = row["envs_per_update"], row["cores"], row["latency_ms"] / 1000
        points.append(Point(row["case"], learners, row["hosts"], width, cores, latency))
    return parts, points, np.array([row["steps_per_second"] for row in content["training"]])


def errors(
    points: Sequence[Point], speeds: Sequence[float], parts: Mapping[str, Parts], fitted: Mapping[str, float]
) -> Any:
    """Logarithms of predicted over measured speeds."""
    return np.log([steps_per_second(point, parts[point.case], fitted) for point in points]) - np.log(speeds)


def halves(
    parts: Mapping[str, Parts], points: Sequence[Point], speeds: NDArray[np.float64]
) -> list[tuple[dict[str, float], NDArray[np.float64]]]:
    """Models fitted to random halves, and the errors of what each predicts of the other half."""
    rng, fits = np.random.default_rng(0), list[tuple[dict[str, float], NDArray[np.float64]]]()
    for _ in range(HALVES):
        order = rng.permutation(len(points))
        used, others = order[: len(points) // 2], order[len(points) // 2 :]
        fitted = fit([points[i] for i in used], speeds[used].tolist(), parts)
        fits.append((fitted, errors([points[i] for i in others], speeds[others].tolist(), parts, fitted)))
    return fits


def outward(parts: Mapping[str, Parts], points: Sequence[Point], speeds: NDArray[np.float64], most: int) -> Any:
    """Errors for more hosts of a model fitted to at most so many."""
    few = np.array([point.actors <= most for point in points])
    fitted = fit([point for point, use in zip(points, few, strict=True) if use], speeds[few].tolist(), parts)
    return errors(
        [point for point, use in zip(points, few, strict=True) if not use], speeds[~few].tolist(), parts, fitted
    )


def gpu_speed(gpus: int, fitted: Mapping[str, float], processes: int = 1) -> float:
    """Steps per second of GPUs fed by enough actors; so many driver processes share the coordination.

    An update consists of the GPU's part, the driver's calls to all learners, and the requests of a learner to its
    actors.
    """
    calls = (fitted["r"] + fitted["d"] * (gpus / processes - 1)) * (gpus > 1) + fitted["u"]
    actors = 256 / gpus / HOST_CORES
    seconds = GPU_SECONDS + GPU_REDUCE * (gpus > 1) + calls + max(0.0, fitted["p"] * (HOST_CORES * actors - 1))
    return gpus * GPU_ENVIRONMENTS * 20 / seconds


def band(values: Sequence[Sequence[float]], deviation: float) -> tuple[Any, Any]:
    """The 5% and 95% quantiles of models' predictions [models, hosts] with errors of that deviation."""
    noise = np.random.default_rng(1).normal(0, deviation, (len(values), 1))
    low, high = np.quantile(np.array(values) * np.exp(noise), (0.05, 0.95), axis=0)
    return low, high


def main() -> None:
    """Fit, report and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="scaling")
    options = parser.parse_args()
    parts, points, speeds = read(options.name)
    models = halves(parts, points, speeds)
    missed = np.concatenate([wrong for _, wrong in models])
    whole = fit(points, speeds.tolist(), parts)
    most = max(point.actors for point in points) // 2
    far = outward(parts, points, speeds, most)
    deviation = float(np.sqrt(np.mean(far**2)))
    shape = [Point(CASE, hosts, hosts, WIDTH * hosts, 1.0, LATENCY) for hosts in HOSTS]
    curves = [[steps_per_second(point, parts[CASE], fitted) for point in shape] for fitted, _ in models]
    low, high = band(curves, deviation)
    middle = [steps_per_second(point, parts[CASE], whole) for point in shape]
    split = {hosts: terms(point, parts[CASE], whole) for hosts, point in zip(HOSTS, shape, strict=True)}
    report: dict[str, Any] = provenance() | {
        "points": len(points),
        "fitted": whole,
        "half": {
            "median_error": float(np.median(np.abs(missed))),
            "p90_error": float(np.quantile(np.abs(missed), 0.9)),
        },
        "outward": {"fitted_to_hosts": most, "rms": deviation, "errors": [round(float(each), 3) for each in far]},
        "extrapolation": [
            {
                "hosts": n,
                "steps_per_second": round(m),
                "low": round(float(a)),
                "high": round(float(b)),
                "seconds": split[n],
            }
            for n, m, a, b in zip(HOSTS, middle, low, high, strict=True)
        ],
        "gpus": {str(each): round(gpu_speed(GPUS, whole, each)) for each in (1, 8)}
        | {
            "low_high": [
                round(float(each[0])) for each in band([[gpu_speed(GPUS, fitted)] for fitted, _ in models], deviation)
            ]
        },
    }
    (RESULTS / f"{options.name}-model.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: report[name] for name in ("points", "fitted", "half", "outward", "gpus")}, indent=1))
    for row in report["extrapolation"]:
        print(
            row["hosts"],
            row["steps_per_second"],
            row["low"],
            row["high"],
            {k: round(v, 3) for k, v in row["seconds"].items()},
        )
    plot(parts, points, speeds, whole, middle, low, high)


def plot(
    parts: Mapping[str, Parts],
    points: Sequence[Point],
    speeds: Any,
    whole: Mapping[str, float],
    middle: Any,
    low: Any,
    high: Any,
) -> None:
    """Predicted against measured speeds, and the extrapolation with its band."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    predicted = np.array([steps_per_second(point, parts[point.case], whole) for point in points])
    for case, marker in zip(parts, "os", strict=False):
        chosen = np.array([point.case == case for point in points])
        hosts = np.log2([point.actors for point in points])[chosen]
        shown = left.scatter(
            speeds[chosen], predicted[chosen], c=hosts, cmap="viridis", vmin=0, vmax=4, marker=marker, s=22, label=case
        )
    figure.colorbar(shown, ax=left, label="log2 of hosts")
    ends = [speeds.min() * 0.8, speeds.max() * 1.25]
    left.plot(ends, ends, color="gray", linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="measured steps/s", ylabel="steps/s of the model")
    left.legend(frameon=False)
    right.fill_between(HOSTS, low, high, alpha=0.25, linewidth=0)
    right.plot(HOSTS, middle, label="model, 90% band")
    right.plot(HOSTS, np.array(HOSTS) * middle[0], color="gray", linestyle="--", linewidth=1, label="linear")
    right.axvspan(16, 256, color="gray", alpha=0.08, linewidth=0)
    right.text(18, middle[0], "extrapolated")
    right.set(
        xscale="log", yscale="log", xlabel="hosts of one core, 32 environments each", ylabel="steps/s, BoxWorld, LSTM"
    )
    right.set_xticks(HOSTS, [str(each) for each in HOSTS])
    right.minorticks_off()
    right.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "images" / "scaling.png", dpi=110)


if __name__ == "__main__":
    main()
