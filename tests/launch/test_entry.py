"""The scripts of the commands."""

import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from engram.launch import entry

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]


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
    with pytest.raises(SystemExit) as end:
        entry.run(command, words if words == ["run"] else [*words, "in_this_folder:Missing"])
    assert end.value.code == 2
    assert "'Missing'" in capsys.readouterr().err
    assert "in_this_folder" in sys.modules
