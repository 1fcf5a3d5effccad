"""Who may use a run's Ray, what a run leaves of secrets, and how it lives on a cluster that is not its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engram.launch.train import command as train

TOKEN = "0123456789abcdef" * 4
TINY = [
    *("--env", "boxworld", "--core", "lstm", "--core-args", "hidden_size=8", "--conv-channels", "2", "--env-args"),
    *("path_lengths=1", "num_distractors=0", "max_steps=9", "--envs-per-actor", "4", "--batch-size", "4"),
    *("--total-steps", "400", "--num-actors", "2", "--actor-cpus", "0.5"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray with a token of its own, as `start_ray` makes it; in a process that has not read another token before."""
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    program = (
        "import ray; from engram.launch.cluster.ray_session import start_ray; start_ray(2); "
        "print(ray.get_runtime_context().gcs_address, flush=True); input(); ray.shutdown()"
    )
    environment = os.environ | {"RAY_AUTH_TOKEN_PATH": str(file)}
    environment.pop("RAY_AUTH_TOKEN", None)
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = process.stdout.readline().strip()
        assert file.stat().st_mode & 0o777 == 0o600, "nobody else may read it any more"
        yield found
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(60)


def connect(address: str, token: str) -> "subprocess.CompletedProcess[str]":
    program = f"import ray; ray.init('{address}', log_to_driver=False); print('inside', len(ray.nodes()))"
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_a_private_ray_asks_for_the_token(address: str) -> None:
    assert "inside 1" in connect(address, TOKEN).stdout
    stranger = connect(address, "f" * 64)
    assert stranger.returncode != 0
    assert "inside" not in stranger.stdout
    assert "token" in stranger.stderr.lower()


@pytest.mark.parametrize("where", ["127.0.0.1:1", "nonsense"])
def test_no_cluster_is_one_line(where: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("rl-train")), *TINY, "--ray-address", where]
    environment = os.environ | {"RAY_TMPDIR": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    run = [*command, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2, done.stderr
    assert f"--ray-address {where}: cannot join a cluster" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_of_ray_client_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        train.main([*TINY, "--ray-address", "ray://head:10001"])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert "ray_address is 'ray://head:10001'" in said.out + said.err


def test_a_run_writes_no_secret_anywhere(tmp_path: Path) -> None:
    secrets = {"RAY_AUTH_TOKEN": TOKEN[::-1], "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "HF_TOKEN": "hf_Zk3vQ8"}
    command = [str(Path(sys.executable).with_name("rl-train")), *TINY, "--run-dir", str(tmp_path / "run")]
    with tempfile.TemporaryDirectory(prefix="ray-") as rays:  # pytest's paths are too long for Ray's sockets
        environment = os.environ | secrets | {"RAY_TMPDIR": rays}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        texts = {
            path: path.read_bytes() for place in (rays, tmp_path) for path in Path(place).rglob("*") if path.is_file()
        }
    assert tmp_path / "run" / "config.toml" in texts
    assert any("session_" in str(path) for path in texts), "Ray's own logs are among them"
    texts[Path("the screen")] = (done.stdout + done.stderr).encode()
    assert [(name, path) for name, secret in secrets.items() for path in texts if secret.encode() in texts[path]] == []
