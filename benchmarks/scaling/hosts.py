"""Hosts that share one machine: namespaces with a network address, a share of a core and, as a cluster, a Ray.

A host's processes get at most `cores` of CPU time (cgroup v2 cpu.max or v1 cpu.cfs_quota_us), and more weight than
everything else on the machine. All hosts end with the `with` statement.
"""

import contextlib
import itertools
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from links import Links

NETWORK = "10.78.0"
PORT = 6379
_GROUPS = itertools.count(1)
PERIOD_US = 100_000
"""Of a limit of CPU time, as in containers."""
WEIGHT = 32
"""Times the weight of one other process, for each host."""
STORE_BYTES = 80_000_000
"""Ray's least object store."""
_INIT = """
for place in /dev/shm /tmp; do mount -t tmpfs tmpfs $place; done
ip link set lo up
touch "$READY"
while sleep 1; do :; done
"""


class Group:
    """The cgroup of a host's processes, of version 1 or 2."""

    def __init__(self, name: str) -> None:
        root = Path("/sys/fs/cgroup")
        self._old = (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu").is_dir()
        base = root / "cpu" if self._old else root
        self.path = base / name
        self.path.mkdir()
        weight, value = ("cpu.shares", 1024 * WEIGHT) if self._old else ("cpu.weight", min(100 * WEIGHT, 10_000))
        (self.path / weight).write_text(str(value))

    def limit(self, cores: float | None) -> None:
        """Limit all its processes together; None: no limit."""
        quota = round(PERIOD_US * cores) if cores else -1
        if self._old:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self.path / "cpu.max").write_text(f"{quota if cores else 'max'} {PERIOD_US}")

    def seconds(self) -> float:
        """CPU time of its processes so far, those that have ended left out."""
        ticks = 0
        for process in (self.path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Remove it, once its processes are gone."""
        deadline = time.monotonic() + 10
        while self.path.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.path.rmdir()
            time.sleep(0.1)


class Host:
    """One host; `core` is the only core of the machine that its processes use, None for any."""

    def __init__(self, number: int, folder: Path, environment: dict[str, str], core: int | None = None) -> None:
        self._pin = [] if core is None else ["taskset", "-c", str(core)]
        self.address, self.group = f"{NETWORK}.{number}", Group(f"engram-scaling-{os.getpid()}-{next(_GROUPS)}")
        self.environment = environment
        ready = folder / f"ready-{number}"
        # Should this process die, its hosts die with it.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "-muinpf", "--kill-child", "--mount-proc"]
        self._process = self._start([*command, "bash", "-euc", _INIT], {"READY": str(ready)})
        while not ready.exists():
            assert self._process.poll() is None, f"host {number} does not start"
            time.sleep(0.02)
        self.init = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]

    def start(self, arguments: Sequence[object], **options: object) -> "subprocess.Popen[bytes]":
        """Start a command on the host."""
        return self._start(
            ["nsenter", "-t", self.init, "-m", "-u", "-i", "-n", "-p", *map(str, arguments)], {}, **options
        )

    def run(self, arguments: Sequence[object]) -> str:
        """Run a command on the host; its output. Raises RuntimeError if it fails."""
        process = self.start(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = process.communicate(timeout=300)[0].decode()
        if process.returncode:
            raise RuntimeError(f"{self.address}: {shlex.join(map(str, arguments))}\n{output}")
        return output

    def _start(self, arguments: Sequence[str], more: dict[str, str], **options: object) -> "subprocess.Popen[bytes]":
        enter = f"echo $$ > {self.group.path}/cgroup.procs; exec {shlex.join([*self._pin, *arguments])}"
        environment = {**os.environ, **self.environment, **more}
        return subprocess.Popen(["bash", "-c", enter], env=environment, stdin=subprocess.DEVNULL, **options)  # pyright: ignore

    def close(self) -> None:
        """End the host with all its processes."""
        self._process.kill()
        self._process.wait()
        self.group.close()


class Cluster:
    """Hosts with a Ray, which may become more; use it in a `with` statement.

    Args:
        folder: for files that all hosts share.
        most: hosts at most.
        links: links with latency; else a bridge, which takes no other process.
        cores: the cores of the machine that the hosts use in turn, one each; none for any.
    """

    def __init__(self, folder: Path, most: int, links: bool = True, cores: Sequence[int] = ()) -> None:
        self._folder, self._most, self._with_links, self._cores = folder, most, links, cores
        self._token = secrets.token_hex(32)
        self.hosts: list[Host] = []
        self.size = 0

    def __enter__(self) -> "Cluster":
        environment = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token}
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        with contextlib.ExitStack() as stack:
            for number in range(1, self._most + 1):
                core = self._cores[(number - 1) % len(self._cores)] if self._cores else None
                self.hosts.append(Host(number, self._folder, environment, core))
                stack.callback(self.hosts[-1].close)
            if self._with_links:
                self.links = Links(dict(enumerate((host.init for host in self.hosts), 1)), NETWORK)
                stack.callback(self.links.close)
            else:
                _bridge(self.hosts)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """Ray's."""
        return f"{NETWORK}.1:{PORT}"

    def grow(self, number: int) -> None:
        """Let so many hosts have a Ray, several starting at once.

        The first has room for one actor of two CPUs; every other also for a learner, which takes one.
        """
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats"]
        ray += ["--object-store-memory", STORE_BYTES, "--num-gpus", 0]
        while self.size < number:
            first = self.size == 0
            batch = self.hosts[self.size : 1 if first else min(self.size + 3, number)]
            place = ["--head", "--port", PORT, "--include-dashboard=false"] if first else ["--address", self.address]
            room = [] if first else ["--resources", '{"learner": 1}']
            starting = [
                host.start(
                    [*ray, *place, *room, "--num-cpus", 2 if first else 3, "--node-ip-address", host.address],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.STDOUT,
                )
                for host in batch
            ]
            for process in starting:
                if process.wait(180):
                    raise RuntimeError(f"ray start fails on one of {[host.address for host in batch]}")
            self.size += len(batch)

    def limit(self, cores: float | None) -> None:
        """Limit every host."""
        for host in self.hosts:
            host.group.limit(cores)


def _bridge(hosts: Sequence[Host]) -> None:
    """A bridge in the first host's network, and from it a cable to each other one."""
    first = ["nsenter", "-t", hosts[0].init, "-n", "ip"]
    commands = [
        [*first, "link", "add", "eth0", "type", "bridge"],
        [*first, "address", "add", f"{hosts[0].address}/24", "dev", "eth0"],
        [*first, "link", "set", "eth0", "up"],
        [*first, "route", "add", "default", "dev", "eth0"],
    ]
    for host in hosts[1:]:
        inside, name = ["nsenter", "-t", host.init, "-n", "ip"], f"to{host.address.rpartition('.')[2]}"
        commands += [
            [*first, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", host.init],
            [*first, "link", "set", name, "master", "eth0", "up"],
            [*inside, "address", "add", f"{host.address}/24", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up"],
            [*inside, "route", "add", "default", "dev", "eth0"],
        ]
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
