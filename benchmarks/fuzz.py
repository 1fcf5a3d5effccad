"""Twenty thousand random command lines and damaged run directories (tests/launch/test_fuzz.py tries 200).

    python benchmarks/fuzz.py [--cases 20000] [--seed 0]

Prints cases that end in a traceback, hang, or change a file of the run, and exits with 1 if there are any.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from engram.launch.train import command as train
from fuzzing import attempt, bytes_of, changed, command_line, copy_of, damage, reading_line
from runs import TINY

POPULATION = ["--population", "2", "--pbt.explore", "learner.lr=loguniform(1e-4,1e-3)"]
OFTEN = ["--pbt.warmup", "2", "--pbt.interval", "2", "--pbt.window", "2", "--checkpoint-every", "0"]


def main() -> int:
    """Run all cases; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failures: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with contextlib.redirect_stdout(io.StringIO()):
            train.main([*TINY, "--local", *POPULATION, *OFTEN, "--total-steps", "150", "--run-dir", str(run)])
        for case in range(options.cases):
            if case % 500 == 0:
                print(f"case {case} of {options.cases}, {sum(failures.values())} failures", file=sys.stderr)
            if failure := one_case(Random(f"{options.seed}-{case}"), case, run):
                kind, text = failure
                failures[kind] += 1
                if failures[kind] == 1:
                    print(f"case {case}: {text}\n", flush=True)
    for kind, number in failures.most_common():
        print(f"{number} x {kind}")
    return int(bool(failures))


def one_case(random: Random, case: int, run: Path) -> tuple[str, str] | None:
    """Run a case; return None on success, else the kind of failure and its details."""
    how, before, spoilt = "", {}, run.with_name("spoilt")
    if case % 4:
        command, arguments = command_line(random)
    else:
        how = damage(random, copy_of(run, spoilt))
        before = bytes_of(spoilt)
        command, arguments = reading_line(random, spoilt)
    outcome = attempt(command, arguments)
    if not outcome.fine:
        trace = "".join(traceback.format_exception(outcome.code)[-3:]) if isinstance(outcome.code, Exception) else ""
        kind = trace.strip().splitlines()[-1][:60] if trace else repr(outcome.code)
        where = [line.strip() for line in trace.splitlines() if "File " in line][-1:]
        return f"{command}: {kind} {where}", f"{command} {arguments} {how}\n{outcome.output[-300:]}\n{trace[-900:]}"
    if how and (command != "rl-train" or outcome.code == 2) and changed(before, bytes_of(spoilt)):
        return f"{command} changed a file", f"{command} {arguments} {how}\n{outcome.output[-300:]}"
    return None


if __name__ == "__main__":
    sys.exit(main())
