"""`rl-train` on emulated hosts, measured over spans of time between which hosts and links may change."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hosts import Cluster

ROW_SECONDS = 2
"""Between rows of metrics, which come with an update and take time themselves."""
SHARES = ("learner_busy", "queue_wait", "actor_busy", "policy_lag")
"""Metrics below perf/ that are reported, where a run has them."""
START_SECONDS = 300.0


class Training:
    """A run of `rl-train` with these arguments, on the first host and its cluster; use it in a `with` statement."""

    def __init__(self, cluster: Cluster, folder: Path, arguments: Sequence[object]) -> None:
        self.cluster, self._rows = cluster, folder / "metrics.jsonl"
        self._output = folder.with_suffix(".txt")
        command = [sys.executable, "-c", "from engram.launch.entry import rl_train; rl_train()", *arguments]
        command += ["--ray-address", cluster.address, "--run-dir", folder, "--total-steps", 10**12]
        command += ["--log-seconds", ROW_SECONDS, "--checkpoint-every", 10_000, "--log-every", 10**9]
        with self._output.open("wb") as output:
            self._process = cluster.hosts[0].start(command, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.cluster.limit(None)
        nsenter = self._process.pid
        for child in Path(f"/proc/{nsenter}/task/{nsenter}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait(self, number: int) -> None:
        """Wait for this many more rows. Raises RuntimeError if the run ends or writes none for long."""
        number, deadline = len(self.rows()) + number, time.monotonic() + START_SECONDS
        while len(self.rows()) < number:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"rl-train ended or hangs:\n{self._output.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def rows(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Rows of metrics that were written after `since` (seconds since 1970)."""
        lines = self._rows.read_text().splitlines(keepends=True) if self._rows.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if row["time"] >= since]

    def measure(self, seconds: float, settle: float) -> dict[str, Any]:
        """Steps per second, shares of time, and CPU time of the hosts that run, after `settle` seconds."""
        time.sleep(settle)
        self.wait(1)
        hosts = [host.group for host in self.cluster.hosts[: self.cluster.size]]
        began, cpu = time.time(), [host.seconds() for host in hosts]
        while len(self.rows(began)) < 4 or time.time() < began + seconds:
            self.wait(1)
        elapsed = time.time() - began
        used = [(host.seconds() - before) / elapsed for host, before in zip(hosts, cpu, strict=True)]
        rows = self.rows(began)
        taken = rows[-1]["time"] - rows[0]["time"]
        shares = {
            name: round(sum(row["metrics"].get(f"perf/{name}", 0.0) for row in rows[1:]) / (len(rows) - 1), 4)
            for name in SHARES
            if f"perf/{name}" in rows[-1]["metrics"]
        }
        return {
            "steps_per_second": round((rows[-1]["step"] - rows[0]["step"]) / taken, 2),
            "seconds": round(taken, 2),
            "rows": len(rows),
            "cores_used": [round(each, 3) for each in used],
            **shares,
        }
