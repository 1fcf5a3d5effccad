"""An hour of training with a random fault every half minute.

    sudo python benchmarks/soak/soak.py [--minutes 60] [--every 30] [--seed 1] [--folder FOLDER]

Trains a small T-maze with an LSTM, two actors in Ray processes, and injects the faults of faults.py in
random order, each equally often. Writes benchmarks/results/soak.json and soak.png: the learning curve, every
fault with the seconds until training continued, the ledger's counts of frames and unrolls (ledger.py), and the memory
of all processes over time. Root is needed to mount the small disk that the run directory is on.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import ledger
import plot
from engram.launch.metrics.provenance import provenance
from faults import FAULTS
from process_tree import tree_memory

HERE = Path(__file__).parent
ENVS = 32
DISK = "24m"
"""Room for the checkpoints that are kept, and soon full."""
PATIENCE = 600
"""Seconds in which training must continue after a fault, on a machine with other load."""
ENVIRONMENT = (
    "cue_after_teleport=True difficulty=0 half_width=5 limbo_time=20 teleport_delay=1 timeout_frames=100".split()
)
"""The memory-free twin of a small T-maze, which an LSTM learns in some hundred thousand steps."""
WORDS = [
    *(
        "--env",
        "soak_environment:FlaggedTMaze",
        "--core",
        "lstm",
        "--core-args",
        "hidden_size=64",
        "--conv-channels",
        "8",
    ),
    *("--embedding-size", "64", "--num-actors", "2", "--envs-per-actor", str(ENVS), "--envs-per-update", "16"),
    *("--unroll-length", "50", "--discount", "0.98", "--entropy-cost", "0.003", "--lr", "0.0003"),
    *("--lr-schedule", "constant", "--max-grad-norm", "40", "--seed", "1"),
    *("--checkpoint-every", "5", "--log-every", "4000", "--actor-timeout", "40", "--total-steps", "1000000000"),
]


class Soak:
    """One run, its driver's eyes on it, and a hand for the faults."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.here = folder, folder / "run", HERE
        self.flag, self.ledger = folder / "flag", folder / "ledger.jsonl"
        self.rl_train = str(Path(sys.executable).with_name("rl-train"))
        self.words = [*WORDS, "--env-args", *ENVIRONMENT, f"flag={self.flag}"]
        self.began = time.monotonic()
        self.errors: list[str] = []
        self.memory: list[dict[str, float]] = []
        self.spot_seconds: list[float] = []
        self.known: set[psutil.Process] = set()
        """Every process that the run ever had."""
        self.run.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", self.run], check=True)

    def error(self, what: str) -> None:
        """Record an error."""
        self.errors.append(f"{self.seconds():.0f} s: {what}")
        print("ERROR", self.errors[-1], flush=True)

    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def checkpoints(self) -> list[Path]:
        """Oldest first."""
        return sorted((self.run / "checkpoints").glob("step-*"))

    def start(self) -> None:
        """Start the run, or resume it."""
        resumed = (self.run / "config.toml").exists()
        arguments = ["--resume", str(self.run)] if resumed else [*self.words, "--run-dir", str(self.run)]
        command = [sys.executable, str(HERE / "audited_train.py"), str(self.ledger), *arguments]
        log = (self.folder / "output.log").open("ab")
        self.process = subprocess.Popen(command, cwd=HERE, stdout=log, stderr=subprocess.STDOUT)
        log.close()

    def stop(self, number: signal.Signals) -> None:
        """End the run with a signal, and see that nothing of it stays."""
        self.look()
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.error(f"{number.name} did not end the run")
            self.process.kill()
            code = self.process.wait()
        if number == signal.SIGTERM:
            self.spot_seconds.append(round(time.monotonic() - began, 1))
        if code != (-number if number == signal.SIGKILL else 0):
            self.error(f"exit code {code} after {number.name}")
        left = self.left(30)
        if left:
            self.error(f"left behind after {number.name}: {left}")

    def left(self, seconds: float) -> list[str]:
        """Processes of the run that are still there after some seconds; they are ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            alive = [p for p in self.known if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            if not alive:
                return []
            time.sleep(0.5)
        names = [f"{p.pid} {p.name()}" for p in alive]
        for p in alive:
            p.kill()
        return names

    def look(self) -> int:
        """Note processes and memory; returns how many processes there are."""
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return 0
        self.known |= set(family)
        return len(family)

    def watch(self) -> None:
        """Record samples for the memory curve, in a separate thread."""
        while True:
            count, size = self.look(), tree_memory(self.process.pid)
            if count:
                self.memory.append({"t": round(self.seconds(), 1), "mb": round(size / 1e6, 1), "processes": count})
            time.sleep(5)

    def state(self) -> tuple[int, int]:
        """Size of the ledger, and the learner's steps in its last line."""
        if not self.ledger.exists():
            return 0, 0
        size = self.ledger.stat().st_size
        with self.ledger.open("rb") as file:
            file.seek(max(0, size - 4096))
            lines = file.read().split(b"\n")[1:-1]
        for line in reversed(lines):
            entry = json.loads(line)
            if "at" in entry:
                return size, entry["at"][1]
        return size, 0

    def goes_on(self) -> float | None:
        """Seconds until two more updates are in the ledger, None if PATIENCE did not suffice."""
        began, (size, _) = time.monotonic(), self.state()
        while time.monotonic() - began < PATIENCE:
            if self.process.poll() is not None:
                self.error(f"the run ended by itself with exit code {self.process.returncode}")
                self.start()
            if self.state()[0] > size + 400:
                return round(time.monotonic() - began, 1)
            time.sleep(0.1)
        return None


def main() -> None:
    """Run the soak according to the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=30, help="seconds between faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None, help="where the run, its ledger and its output go")
    parser.add_argument("--name", default="soak", help="of the results")
    arguments = parser.parse_args()
    soak = Soak(arguments.folder or Path(tempfile.mkdtemp(prefix="soak-")))
    try:
        torment(soak, arguments)
    finally:
        soak.process.kill()
        time.sleep(1)
        subprocess.run(["umount", "-l", soak.run], check=False)


def torment(soak: Soak, arguments: argparse.Namespace) -> None:
    """Train for some minutes with a fault now and then; note what was done and how long training took to go on."""
    draw = random.Random(arguments.seed)
    soak.start()
    soak.goes_on()
    threading.Thread(target=soak.watch, daemon=True).start()
    done: list[dict[str, Any]] = []
    waiting: list[Any] = []
    next_at = soak.seconds() + arguments.every
    while soak.seconds() < 60 * arguments.minutes:
        time.sleep(max(0.0, next_at - soak.seconds()))
        next_at = max(next_at + arguments.every, soak.seconds())
        if not waiting:  # every fault once before any comes again
            waiting = draw.sample(FAULTS, len(FAULTS))
        fault = waiting.pop()
        at, steps = soak.seconds(), soak.state()[1]
        try:
            fault(soak, draw)
        except (psutil.Error, IndexError) as problem:
            print("not now:", fault.__name__, problem, flush=True)  # its victim is being replaced, or is not there yet
            if soak.process.poll() is not None:
                soak.start()
            continue
        seconds = soak.goes_on()
        if seconds is None:
            soak.error(f"training did not go on after {fault.__name__}")
        done.append({"t": round(at, 1), "fault": fault.__name__, "step": steps, "goes_on_s": seconds})
        print(json.dumps(done[-1]), flush=True)
        if len(done) % 12 == 0:
            report(soak, done, arguments)
    soak.stop(signal.SIGTERM)
    report(soak, done, arguments)


def report(soak: Soak, faults: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write the results so far."""
    rows = [json.loads(line) for line in (soak.run / "metrics.jsonl").read_text().splitlines()]
    errors = list(soak.errors)
    for earlier, later in pairwise(rows):
        if later["step"] <= earlier["step"] or later["wall_s"] < earlier["wall_s"]:
            errors.append(f"metrics go back from {earlier['step']} to {later['step']}")
    measures = ("episode/return", "episode/solved", "perf/actor_failures")
    result = provenance() | {
        "command": " ".join(["rl-train", *soak.words]).replace(str(soak.folder), "FOLDER"),
        "minutes": round(soak.seconds() / 60, 1),
        "seed": arguments.seed,
        "began": round(time.time() - soak.seconds(), 1),
        "number_of_faults": len(faults),
        "errors": errors,
        "ledger": ledger.verdict(soak.ledger, ENVS),
        "sigterm_to_end_s": soak.spot_seconds,
        "faults": faults,
        "curve": {"step": [row["step"] for row in rows], "time": [row["time"] for row in rows]}
        | {name: [row["metrics"].get(name) for row in rows] for name in measures},
        "memory": soak.memory,
    }
    file = HERE.parent / "results" / f"{arguments.name}.json"
    file.write_text(json.dumps(result) + "\n")
    plot.draw(result, file.with_suffix(".png"))
    print(json.dumps(result["ledger"]), errors, flush=True)


if __name__ == "__main__":
    main()
