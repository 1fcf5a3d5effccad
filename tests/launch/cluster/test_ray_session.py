"""Access to the Ray instance of a run, secrets that a run leaves, and runs on an existing cluster."""

import ast
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engram.base.errors import EngramError
from engram.launch.cluster.ray_session import cpus_needed
from engram.launch.train import command as train
from process_tree import tree
from runs import FOREVER, last_step, start, wait_for

TOKEN = "0123456789abcdef" * 4
TINY = [
    *("--env", "boxworld", "--core", "lstm", "--core-args", "hidden_size=8", "--conv-channels", "2", "--env-args"),
    *("path_lengths=1", "num_distractors=0", "max_steps=9", "--envs-per-actor", "4", "--envs-per-update", "4"),
    *("--total-steps", "400", "--num-actors", "2", "--actor-cpus", "0.5"),
]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[subprocess.Popen[str]]":
    """A Ray with a token of its own, as `start_ray` makes it; in a process that has not read another token before.

    The process has a working directory with a module that has a library's name, and says Ray's address.
    """
    (folder := tmp_path_factory.mktemp("work")).joinpath("queue.py").write_text("raise SystemExit('not this one')")
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    program = (
        "import ray; from engram.launch.cluster.ray_session import start_ray; start_ray(2); "
        "print(ray.get_runtime_context().gcs_address, flush=True); input(); "
        "print(ray.get(ray.remote(lambda: __import__('sys').path).remote()), flush=True); input(); ray.shutdown()"
    )
    environment = os.environ | {"RAY_AUTH_TOKEN_PATH": str(file)}
    environment.pop("RAY_AUTH_TOKEN", None)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as process:
        process.address = process.stdout.readline().strip()  # type: ignore[attr-defined,union-attr]
        assert file.stat().st_mode & 0o777 == 0o600, "nobody else may read it any more"
        yield process
        process.communicate("\n\n", timeout=60)


@pytest.fixture(scope="module")
def address(private: Any) -> str:
    return private.address


def test_the_working_directory_does_not_stand_before_libraries_in_rays_workers(private: Any) -> None:
    private.stdin.write("\n")
    private.stdin.flush()
    folder = psutil.Process(private.pid).cwd()
    assert folder not in ast.literal_eval(private.stdout.readline()), "ActorProcess appends it"


def connect(address: str, token: str) -> "subprocess.CompletedProcess[str]":
    program = (
        "import ray; from engram.launch.cluster.ray_session import loopback_only\n"
        f"with loopback_only(): ray.init('{address}', log_to_driver=False, _node_ip_address='127.0.0.1')\n"
        "print('inside', len(ray.nodes()))"
    )
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_private_ray_asks_for_the_token(address: str) -> None:
    assert "inside 1" in connect(address, TOKEN).stdout
    stranger = connect(address, "f" * 64)
    assert stranger.returncode != 0
    assert "inside" not in stranger.stdout
    assert "token" in stranger.stderr.lower()


def sockets_of(process: psutil.Process, kind: str) -> list[Any]:
    """Open sockets of a process; none of one that has ended since it was listed."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.net_connections(kind)
    return []


def test_nobody_else_on_the_network_or_the_machine_reaches_a_private_ray(private: "subprocess.Popen[str]") -> None:
    found = {
        (process.name(), socket.laddr.ip.removeprefix("::ffff:"))
        for process in tree(private.pid)
        for socket in sockets_of(process, "inet")
        if socket.status == psutil.CONN_LISTEN
    }
    assert {"gcs_server", "raylet"} <= {name for name, _ in found}
    assert {ip for _, ip in found} == {"127.0.0.1"}, found
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / f"engram-ray-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    sockets = [socket.laddr for process in tree(private.pid) for socket in sockets_of(process, "unix")]
    places = [place for place in sockets if "/session_" in place]
    assert places
    assert all(place.startswith(f"{folder}/") for place in places)


def test_a_private_ray_has_no_processes_that_a_run_does_not_use(private: "subprocess.Popen[str]") -> None:
    commands = [" ".join(process.cmdline()) for process in tree(private.pid)]
    assert sum(command.startswith("sh -c") for command in commands) == 2, "raylet requires its two agents"
    programs = [command for command in commands if Path(command.split(" ")[0]).name.startswith("python")]
    assert programs
    assert not [command for command in programs if any(name in command for name in ("dashboard", "monitor", "agent"))]


def test_no_cluster_is_one_line(tmp_path: Path) -> None:
    """In one process for all, away from this one: each sets up Ray's environment."""
    program = (
        "import sys; from engram.launch.entry import rl_train\n"
        "for where in ('127.0.0.1:1', 'nonsense', 'auto'):\n"
        "    try: rl_train([*sys.argv[1:], '--ray-address', where])\n"
        "    except SystemExit as end: print(where, end.code)"
    )
    environment = os.environ | {"RAY_TMPDIR": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", program, *TINY, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    codes = [line for line in done.stdout.splitlines() if line.startswith(("127.0.0.1:1 ", "nonsense ", "auto "))]
    assert codes == ["127.0.0.1:1 3", "nonsense 2", "auto 2"], done.stderr
    for where in ("127.0.0.1:1", "nonsense", "auto"):
        assert f"--ray-address {where}: cannot join a cluster" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_of_ray_client_is_refused() -> None:
    with pytest.raises(EngramError, match=r"ray_address is 'ray://head:10001'; allowed: auto or HOST:PORT"):
        train.main([*TINY, "--ray-address", "ray://head:10001"])


def test_a_run_writes_no_secret_anywhere(tmp_path: Path) -> None:
    secrets = {"RAY_AUTH_TOKEN": TOKEN[::-1], "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "HF_TOKEN": "hf_Zk3vQ8"}
    with tempfile.TemporaryDirectory(prefix="ray-") as rays:  # pytest's paths are too long for Ray's sockets
        environment = os.environ | secrets | {"RAY_TMPDIR": rays}
        run = start(*TINY, *FOREVER, "--run-dir", tmp_path / "run", env=environment)
        wait_for(lambda: last_step(tmp_path / "run") > 0)
        files = [path for place in (rays, tmp_path) for path in Path(place).rglob("*") if path.is_file()]
        texts = {path: path.read_bytes() for path in files}  # Ray's folder goes when the run ends
        run.terminate()
        screen, _ = run.communicate(timeout=180)
        texts |= {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert tmp_path / "run" / "config.toml" in texts
    assert any("session_" in str(path) for path in texts), "Ray's own logs are among them"
    texts[Path("the screen")] = screen.encode()
    assert [(name, path) for name, secret in secrets.items() for path in texts if secret.encode() in texts[path]] == []


def test_the_folder_of_a_ray_whose_process_has_ended_is_removed(tmp_path: Path) -> None:
    (other := tmp_path / f"session_2026-01-01_00-00-00_000001_{os.getpid()}").mkdir()
    script = "import sys; from pathlib import Path; from engram.launch.cluster import orphans; "
    script += "p = orphans.start_clean_up(Path(sys.argv[1])); print(p.pid)"
    first = subprocess.Popen([sys.executable, "-P", "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    mine = tmp_path / f"session_2026-01-01_00-00-00_000002_{first.pid}"
    mine.mkdir()
    assert first.communicate()[0].strip().isdigit()
    wait_for(lambda: not mine.exists(), seconds=60)
    assert other.exists()


def test_a_ray_has_room_for_every_actor() -> None:
    assert [cpus_needed(n, cpus) for n, cpus in ((1, 1.0), (3, 0.5), (2, 0.0), (4, 2.0))] == [1, 2, 1, 8]


def descendants_until(process: "subprocess.Popen[str]", seconds: float, name: str) -> list[psutil.Process]:
    """All processes that `process` has started when one whose command line has `name` in it is among them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = psutil.Process(process.pid).children(recursive=True)
        for each in found:
            try:
                if name in " ".join(each.cmdline()):
                    return found
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.02)
    raise AssertionError(f"no {name} within {seconds} s")


@pytest.mark.parametrize(
    ("number", "began"),
    [
        (signal.SIGINT, "gcs_server"),  # while Ray starts; tests/faults has SIGTERM
        (signal.SIGTERM, "ray::IDLE"),  # when Ray is connected
    ],
)
def test_a_signal_before_the_first_update_prints_no_stack(number: signal.Signals, began: str, tmp_path: Path) -> None:
    words = ["--env", "sequence-recall", "--core", "lstm", "--core-args", "hidden_size=8"]
    command = [str(Path(sys.executable).with_name("rl-train")), *words, "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    family = descendants_until(process, 180, began)
    process.send_signal(number)
    output, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (0, "")
    assert f"stopped ({number.name})" in output
    psutil.wait_procs(family, timeout=60)
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
