"""Checks of a device, as JSON: python benchmarks/on_device.py certificate|resume --device cuda

certificate: the lines of rl-check-core for every core with a memory, all tensors made on the device; exit code 1 if one
fails. resume: a synchronous run that is stopped half-way and resumed has the weights of an uninterrupted one, bit for
bit.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from engram.agents.certificate.certificate import certify
from engram.agents.cores import core_names, make_core
from engram.agents.process import prepare_process
from engram.launch.run.device import find_device
from engram.launch.train.command import main as rl_train
from engram.learners import checkpoints

INPUT_SIZE = 16


def certificate(names: list[str], long_run: int) -> dict[str, Any]:
    """Failing lines by core, on torch's default device."""
    failed: dict[str, Any] = {}
    for name in names:
        lines = certify(lambda name=name: make_core(name, INPUT_SIZE), INPUT_SIZE, long_run=long_run)
        failed[name] = {line.name: line.detail for line in lines if not line.passed}
        print(f"{name}: {len(failed[name])} failed", flush=True)
    return {"cores": names, "failed": {name: lines for name, lines in failed.items() if lines}}


def resume(device: str, core: str, arguments: list[str], steps: int) -> dict[str, Any]:
    """Run in one piece and in two; compare the learner's state in the last checkpoints."""
    run = ["--env", "boxworld", "--core", core, "--sync", "--local", "--device", device, "--lr-schedule", "constant"]
    learners: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, ends in (("whole", [steps]), ("parts", [steps // 2, steps])):
            place = str(Path(folder) / name)
            for number, end in enumerate(ends):
                first = [*run, *arguments, "--run-dir", place]
                command = ["--resume", place] if number else first
                if code := rl_train([*command, "--total-steps", str(end)]):
                    raise SystemExit(f"rl-train {' '.join(command)} ended with {code}")
            newest = checkpoints.latest(Path(place) / "checkpoints")
            assert newest is not None
            learners.append(checkpoints.load(newest)["members"][0]["learner"])
    whole, parts = learners
    different = [name for name in whole["agent"] if not torch.equal(whole["agent"][name], parts["agent"][name])]
    return {"core": core, "steps": [each["steps"] for each in learners], "different": different}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["certificate", "resume"])
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
    else:
        torch.set_default_device(device)
        results = certificate(options.cores, options.long_run)
        failed = bool(results["failed"])
    print(json.dumps({"device": options.device, "passed": not failed} | results))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
