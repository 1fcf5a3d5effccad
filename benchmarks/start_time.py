"""Seconds from the command to the first update of `rl-train`, part by part.

    python benchmarks/start_time.py [--repeat 3] [--env boxworld --core rmc ...: flags of rl-train]

The real command in a child process, with a clock around the first and last functions of the parts. Compiled
code is on disk, from a run before the measured ones. Parts overlap (Ray starts while optimizers are built), so
they do not add up; times are in seconds since the process began. The fastest of the repetitions counts, since
other load only slows a run down. Prints the result and writes it to benchmarks/results/start.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engram.launch.metrics.provenance import provenance

RESULT = Path(__file__).parent / "results" / "start.json"
PROGRAM = """
import importlib, json, sys, time
from types import SimpleNamespace
born, file = float(sys.argv.pop(1)), sys.argv.pop(1)
moments = {"interpreter": round(time.time() - born, 2)}

def note(name):
    moments.setdefault(name, round(time.time() - born, 2))
    open(file, "w").write(json.dumps(moments))  # rl-train may leave without the interpreter's clean-up

class Watched:
    "The stream of the output, which notes the first text in it."
    def __init__(self, stream): self.stream = stream
    def write(self, text):
        note("first output")
        return self.stream.write(text)
    def __getattr__(self, name): return getattr(self.stream, name)

sys.stdout = Watched(sys.stdout)
from engram.launch import entry
note("command imported")

def timed(owner, name, before, after):
    inner = getattr(owner, name)
    def outer(*args, **kwargs):
        if before: note(before)
        result = inner(*args, **kwargs)
        note(after)
        return result
    setattr(owner, name, outer)

def watch():
    from engram.launch.api import training
    from engram.launch.train import trainer
    note("everything imported")
    timed(training, "make_agents", "networks begin", "networks are built")
    timed(training, "make_learners", None, "optimizers are built")
    timed(trainer.Trainer, "run", "training begins", "saved")
    from engram.learners.learner import Learner
    timed(Learner, "learn", "first unroll is there", "first update")
    if "--local" not in sys.argv:
        from engram.actors.remote.pool import RayPool
        timed(RayPool, "__init__", "Ray is started", "actors asked for")

def import_module(name):
    command = importlib.import_module(name)
    run_training = command.run_training
    def watched(*args, **kwargs):
        note("configuration read")
        watch()
        return run_training(*args, **kwargs)
    command.run_training = watched
    return command
entry.importlib = SimpleNamespace(import_module=import_module)
entry.rl_train()
"""


def start(arguments: list[str], folder: Path) -> dict[str, float]:
    """Times of one run that ends after its first updates."""
    moments = folder / "moments.json"
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(time.time()),
        str(moments),
        *arguments,
        "--total-steps",
        "1",
        "--run-dir",
    ]
    subprocess.run([*command, tempfile.mkdtemp(dir=folder)], check=True, stdout=subprocess.DEVNULL)
    return json.loads(moments.read_text())


def main() -> None:
    """Measure with and without Ray."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    options, arguments = parser.parse_known_args()
    arguments = arguments or ["--env", "boxworld", "--core", "rmc"]
    result: dict[str, Any] = provenance() | {"flags": arguments, "repeat": options.repeat}
    with tempfile.TemporaryDirectory() as folder:
        for name, more in (("ray", []), ("local", ["--local"])):
            runs = [start([*arguments, *more], Path(folder)) for _ in range(options.repeat + 1)][1:]
            result[name] = min(runs, key=lambda moments: moments["first update"])
            print(name)
            for moment, seconds in sorted(result[name].items(), key=lambda pair: pair[1]):
                print(f"  {seconds:6.2f}  {moment}")
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
