"""Checks of a device, as JSON: python benchmarks/on_device.py certificate|resume|learners --device cuda

certificate: the lines of rl-check-core for every core with memory, with all tensors on the device; exit code 1 if any
fails. resume: a synchronous run that is stopped halfway and resumed has the weights of an uninterrupted one, bit for
bit. learners: a synchronous run with two learners, each on its own device, has the weights of a run with one learner,
up to the order of sums, and a run continues after one of its two learners is killed.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from engram.agents.certificate.certificate import certify
from engram.agents.cores import core_names, make_core
from engram.agents.process import prepare_process
from engram.launch.config.run_config import find_device
from engram.launch.train.command import main as rl_train
from engram.learners import checkpoints

INPUT_SIZE = 16
LARGEST_DIFFERENCE = 1e-3
"""Of weights of one and of two learners."""


def certificate(names: list[str], long_run: int) -> dict[str, Any]:
    """Return failing lines by core, on torch's default device."""
    failed: dict[str, Any] = {}
    for name in names:
        lines = certify(lambda name=name: make_core(name, INPUT_SIZE), INPUT_SIZE, long_run=long_run)
        failed[name] = {line.name: line.detail for line in lines if not line.passed}
        print(f"{name}: {len(failed[name])} failed", flush=True)
    return {"cores": names, "failed": {name: lines for name, lines in failed.items() if lines}}


def trained(place: Path, ends: list[int], command: list[str]) -> dict[str, Any]:
    """Train up to each number of steps in turn, with resumes; return the learner's final state."""
    for number, end in enumerate(ends):
        command = ["--resume", str(place)] if number else [*command, "--run-dir", str(place)]
        if code := rl_train([*command, "--total-steps", str(end)]):
            raise SystemExit(f"rl-train {' '.join(command)} ended with {code}")
    newest = checkpoints.latest(place / "checkpoints")
    assert newest is not None
    return checkpoints.load(newest)["members"][0]["learner"]


def command_of(device: str, core: str, arguments: list[str]) -> list[str]:
    """Flags of a synchronous run."""
    run = ["--env", "boxworld", "--core", core, "--sync", "--device", device, "--lr-schedule", "constant"]
    return [*run, *arguments]


def kill_learner(run: Path) -> None:
    """Kill the second learner's process once the run has learned."""
    while not (run / "metrics.jsonl").exists():
        time.sleep(0.1)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ray::LearnerProcess" in " ".join(process.cmdline()):
                process.kill()


def learners(device: str, core: str, arguments: list[str], steps: int) -> dict[str, Any]:
    """Run with one learner and with two, and kill one of the two."""
    run = [*command_of(device, core, arguments), "--num-actors", "2", "--log-every", "1"]
    with tempfile.TemporaryDirectory() as folder:
        one, two = (
            trained(Path(folder) / str(number), [steps], [*run, "--num-learners", str(number)]) for number in (1, 2)
        )
        threading.Thread(target=kill_learner, args=(Path(folder) / "lost",), daemon=True).start()
        lost = trained(Path(folder) / "lost", [steps], [*run, "--num-learners", "2"])
    far = max(float((value - two["agent"][name]).abs().max()) for name, value in one["agent"].items())
    return {"core": core, "steps": [each["steps"] for each in (one, two, lost)], "difference": far}


def resume(device: str, core: str, arguments: list[str], steps: int) -> dict[str, Any]:
    """Run uninterrupted and with a resume; compare the learner's state in the last checkpoints."""
    run = [*command_of(device, core, arguments), "--local"]
    with tempfile.TemporaryDirectory() as folder:
        whole = trained(Path(folder) / "whole", [steps], run)
        parts = trained(Path(folder) / "parts", [steps // 2, steps], run)
    different = [name for name in whole["agent"] if not torch.equal(whole["agent"][name], parts["agent"][name])]
    return {"core": core, "steps": [each["steps"] for each in (whole, parts)], "different": different}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["certificate", "resume", "learners"])
    parser.add_argument("--device", default="cpu")
    remembering = [name for name in core_names() if name != "feedforward"]
    parser.add_argument("--cores", nargs="*", default=remembering)
    parser.add_argument("--long-run", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=60_000)
    options, arguments = parser.parse_known_args()
    device = find_device(options.device)
    prepare_process(1)
    if options.what == "resume":
        with contextlib.redirect_stdout(sys.stderr):  # the last line of the output is the result
            results = {core: resume(options.device, core, arguments, options.steps) for core in options.cores}
        failed = any(each["different"] or len(set(each["steps"])) > 1 for each in results.values())
    elif options.what == "learners":
        with contextlib.redirect_stdout(sys.stderr):
            results = {core: learners(options.device, core, arguments, options.steps) for core in options.cores}
        failed = any(each["difference"] > LARGEST_DIFFERENCE for each in results.values())
    else:
        torch.set_default_device(device)
        results = certificate(options.cores, options.long_run)
        failed = bool(results["failed"])
    print(json.dumps({"device": options.device, "passed": not failed} | results))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
