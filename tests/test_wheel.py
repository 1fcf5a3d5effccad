"""The wheel holds what the pages promise, and works away from the checkout."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from engram import __version__

ROOT = Path(__file__).resolve().parent.parent
NOT_DISTRIBUTED = (".git", ".docker", "training/")  # unfinished training runs are for the checkout only

USE = """
import sys
from pathlib import Path
import engram, engram.launch.cluster
assert Path(engram.__file__).parent.parent == Path(sys.argv[1]), engram.__file__
assert "torch" not in sys.modules and "ray" not in sys.modules, "import engram is cheap"
files = {path.name for path in Path(engram.launch.cluster.__path__[0]).iterdir()}
assert {"aws.yaml", "gcp.yaml", "local.yaml", "slurm_array.sh", "slurm_ray.sh"} <= files, files
import gymnasium
gymnasium.make("engram/CuedCatch-v0").reset(seed=0)
from engram.examples.masked_cartpole import MaskedCartPole
MaskedCartPole().reset(seed=0)
from engram.envs.tasks.task import task_names
from engram.launch.config.run_flags import parse_run
from importlib import resources
assert task_names() and parse_run(["--env", "t-maze", "--preset", "easy"]).env == "t-maze"
assert resources.files("engram.launch.insight").joinpath("page.html").is_file()
from engram.launch.entry import rl_train
rl_train(["--version"])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content in a folder of its own."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    dist, place = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("installed")
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    copy = tmp_path_factory.mktemp("source") / "checkout"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", str(copy)], check=True, timeout=120)
    for name in ("pyproject.toml", "__init__.py"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    words = [sys.executable, "-c", build, str(dist)]
    subprocess.run(words, cwd=copy, check=True, capture_output=True, timeout=300)
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"engram_rl-{__version__}-py3-none-any.whl"
    zipfile.ZipFile(wheel).extractall(place)
    return place


def test_it_works_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", USE, str(installed)]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, f"rl-train {__version__}\n"), done.stderr


def test_it_carries_no_tests_and_no_results(installed: Path) -> None:
    top = {path.name for path in (installed / "engram").iterdir()}
    assert "examples" in top
    assert not top & {"tests", "benchmarks", "docs", "docker"}


def test_the_source_distribution_holds_what_its_tests_need(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    copy = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", str(copy)], check=True, timeout=120)
    for name in ("pyproject.toml", "MANIFEST.in"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    words = [sys.executable, "-c", build, str(tmp_path)]
    subprocess.run(words, cwd=copy, check=True, capture_output=True, timeout=300)
    (archive,) = tmp_path.glob("engram_rl-*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=copy, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    missing = [name for name in listed if name and name not in held and not name.startswith(NOT_DISTRIBUTED)]
    assert missing == []
