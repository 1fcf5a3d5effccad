"""Where the CPU time of training goes, by kind of work, from a sampling profiler (Linux `perf`).

    python benchmarks/where_time_goes.py                3 minutes; writes results/where-time-goes.json

`rl-train` runs with its defaults and bf16; after its second row of metrics all of its processes are sampled.
Percentages are of CPU time, so that other load on the machine matters little. A sample belongs to the innermost
function:

    gemm         matrix multiplications and convolutions of oneDNN, MKL and OpenBLAS
    compiled     engram's functions compiled by numba: cores between multiplications, rounding, environments
    elementwise  torch's loops over values: activations, sums, softmax, optimizer
    copies       memmove, memset, torch's copies, new pages of memory
    autograd     torch's graph
    dispatch     torch and libc around an operation: arguments, allocation, choice of the kernel
    python       the interpreter, entry points of NumPy and numba
    ray          Ray's libraries and processes
    other        the kernel, libraries
"""

import argparse
import collections
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from engram.launch.api.run import Background
from engram.launch.metrics.provenance import provenance
from engram.launch.metrics.rows import read_log

RESULT = Path(__file__).parent / "results" / "where-time-goes.json"
CASES = {
    "boxworld rmc": ["--env", "boxworld", "--core", "rmc"],
    "boxworld lstm": ["--env", "boxworld", "--core", "lstm"],
    "t-maze concrete": ["--env", "t-maze", "--core", "concrete"],
}
KINDS = (
    ("ray", r"raylet|gcs_server|ray::Dash|\.io |\.poll|event_engine|grpc", ""),
    ("gemm", r"JIT|torch|blas|perf-\d+", r"gemm|conv|mkl_blas|_sdot|sgemv"),
    ("gemm", r"openblas", ""),
    ("compiled", r"JIT|perf-\d+|^\[unknown\]", ""),
    ("copies", r"libc|torch|kernel", r"mem(move|cpy|set)|clear_page|copy|cat_serial|page_fault|fault"),
    ("autograd", r"torch", r"autograd"),
    ("elementwise", r"torch", r"vectorized|loop2d|_kernel|softmax|reduce|mkl_vml"),
    ("dispatch", r"torch|libc10|libc\.|libstdc|ld-linux", ""),
    ("python", r"libpython|python3|multiarray|_dispatcher", ""),
)
"""Kind, pattern of the command and library, pattern of the function; the first that fits."""


def kind_of(library: str, function: str) -> str:
    """The kind of work of a sample."""
    for kind, in_library, in_function in KINDS:
        if re.search(in_library, library) and re.search(in_function, function, re.IGNORECASE):
            return kind
    return "other"


def shares(file: Path) -> dict[str, float]:
    """Percentage of samples of each kind."""
    columns = ["--sort", "comm,dso,symbol", "--field-separator", "|", "--percent-limit", "0", "--stdio"]
    report = subprocess.run(["perf", "report", "-i", str(file), *columns], capture_output=True, text=True, check=True)
    total: dict[str, float] = collections.defaultdict(float)
    for line in report.stdout.splitlines():
        percent, *places = (part.strip() for part in line.split("|", 3))
        if line.startswith("#") or len(places) < 3:
            continue
        command, library, function = places
        total[kind_of(f"{command} {library}", function)] += float(percent.rstrip("%"))
    return {kind: round(percent, 1) for kind, percent in sorted(total.items(), key=lambda each: -each[1])}


def measure(arguments: list[str], seconds: float) -> dict[str, float]:
    """Train with these arguments and sample."""
    with tempfile.TemporaryDirectory() as folder:
        path, file = Path(folder) / "run", Path(folder) / "perf.data"
        run = Background(path, [*arguments, "--log-seconds", "2", "--total-steps", str(10**12), "--run-dir", str(path)])
        try:
            while run.running and len(read_log(path / "metrics.jsonl")) < 2:
                time.sleep(0.2)
            parent = psutil.Process(run.process.pid)
            family = parent, *parent.children(recursive=True)
            processes = ",".join(str(each.pid) for each in family if each.name() != "sleep")  # shells of Ray's agents
            options = ["-q", "-F", "499", "-o", str(file), "-p", processes]
            subprocess.run(["perf", "record", *options, "--", "sleep", str(seconds)], check=True)
            return shares(file)
        finally:
            run.stop()
            run.process.wait(60)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    os.environ["ONEDNN_JIT_PROFILE"] = "2"  # oneDNN names its generated functions for perf
    results = json.loads(RESULT.read_text())["percent"] if RESULT.exists() else {}
    for name in options.only:
        results[name] = measure([*CASES[name], "--precision", options.precision], options.seconds)
        print(name, json.dumps(results[name]), flush=True)
        RESULT.write_text(json.dumps(provenance() | {"percent": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
