"""The scripts of the commands: a signal while libraries are imported ends a command in one line, and nothing else."""

import importlib
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import engram
from engram.launch import entry

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]

PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore them
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def hook(event, args):
    if event == "import" and args[0] == sys.argv[1]:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])

sys.addaudithook(hook)
import engram
from engram.launch import entry
getattr(entry, sys.argv[3])()
"""


def interrupted(program: str, at: str, how: str, function: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a program that gets a signal when it imports `at`."""
    code = PROGRAM.replace("import engram", f"sys.argv[0] = {program!r}\nimport engram", 1)
    done = subprocess.run([sys.executable, "-c", code, at, how, function], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ("rl-eval", "torch"),
        ("rl-look", "numpy"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (("rl-probe", "torch._C"), ("rl-population", "tyro"), ("rl-reproduce", "rich"))
        ),
    ],
)
def test_ctrl_c_while_a_command_starts_is_one_line_and_130(command: str, at: str) -> None:
    code, _, err = interrupted(f"/bin/{command}", at, "SIGINT", command.replace("-", "_"))
    assert (code, err) == (130, f"{command}: interrupted\n")


@pytest.mark.parametrize(
    ("at", "how"),
    [
        ("gymnasium", "SIGTERM"),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in (("tyro", "SIGINT"), ("rich", "SIGHUP"))),
    ],
)
def test_training_that_has_not_begun_ends_with_0(at: str, how: str) -> None:
    code, out, err = interrupted("rl-train", at, how, "rl_train")
    assert (code, out, err) == (0, f"stopped ({how}) before training began\n", "")


def test_another_program_is_interrupted_as_every_program_is() -> None:
    code, _, err = interrupted("mine.py", "gymnasium", "SIGINT", "rl_eval")
    assert code != 130
    assert err.endswith("KeyboardInterrupt\n")


def test_every_script_is_a_function_for_a_command_that_exists() -> None:
    wanted = {name: f"{entry.__name__}:{name.replace('-', '_')}" for name in entry.FOLDERS}
    assert wanted == SCRIPTS
    for name in wanted:
        assert callable(getattr(entry, name.replace("-", "_")))
        assert importlib.util.find_spec(entry.module_of(name)) is not None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rl-train", ["--local", "--env"]),
        ("rl-doctor", ["--local", "--env"]),
        ("rl-bench", ["--local", "--env"]),
        ("rl-play", ["run"]),
        ("rl-check-core", []),
        ("rl-probe", ["recall", "--core"]),
    ],
)
def test_every_command_finds_a_module_in_the_working_directory(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in_this_folder.py").write_text("")
    run = Path(shutil.copytree(Path(__file__).parents[1] / "fixtures" / "run-4d2bf2e", tmp_path / "run"))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('core = "lstm"', 'core = "in_this_folder:Missing"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "in_this_folder", raising=False)
    module = importlib.import_module(entry.module_of(command))
    with pytest.raises(SystemExit) as end:
        module.run(words if words == ["run"] else [*words, "in_this_folder:Missing"])
    assert end.value.code == 2
    assert "'Missing'" in capsys.readouterr().err
    assert "in_this_folder" in sys.modules


def test_ctrl_c_at_the_end_of_a_command_shows_no_traceback() -> None:
    code = """
import os, signal, sys
from engram.launch.entry import rl_train
sys.argv = ["rl-train", "--version"]
try:
    rl_train()
finally:
    os.kill(os.getpid(), signal.SIGINT)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("distribution", "refused"), [("engram-0.1.0a1", True), ("engram_rl-0.2.0", False)])
@pytest.mark.parametrize("command", ["rl-train", "program.py"])
def test_another_distribution_of_the_same_name_is_one_line(
    tmp_path: Path, distribution: str, refused: bool, command: str
) -> None:
    (tmp_path / "engram").symlink_to(Path(engram.__path__[0]))
    info = tmp_path / f"{distribution}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("engram/__init__.py,,\nengram/other.py,,\n")
    program = (
        f"import sys; sys.argv[0] = {command!r}; sys.path.insert(0, {str(tmp_path)!r}); import engram.launch.entry"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    if not refused:
        assert (done.returncode, done.stderr) == (0, "")
        return
    line = done.stderr.strip().splitlines()[-1]
    assert "the package engram 0.1.0a1 has installed another module engram over engram-rl" in line
    assert line.endswith("pip uninstall engram, then pip install --force-reinstall --no-deps engram-rl")
    if command == "rl-train":
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
    else:
        assert line.startswith("ImportError: ")
