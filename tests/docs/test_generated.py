"""The generated parts of the reference name every command, every setting and every public name."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from engram.launch.run.command_line import flags_of
from engram.launch.run.config import RunConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def site_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))


def test_every_command_has_a_section() -> None:
    text = importlib.import_module("command_pages").commands()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert sorted(re.findall(r"^## (rl-[\w-]+)$", text, re.MULTILINE)) == sorted(scripts)
    assert "| `--episodes` `INT` | `1000` |" in text


def test_every_setting_has_a_line() -> None:
    tables = importlib.import_module("setting_tables")
    listed = set(re.findall(r"^\| `(--[\w.-]+)` \|", tables.settings(), re.MULTILINE))
    assert listed == {flag for flag in flags_of(RunConfig) if not flag.startswith("--no-")}
    assert "| `easy` | `boxworld` |" in tables.presets()


def test_every_folder_has_a_page() -> None:
    pages = importlib.import_module("api_pages").pages()
    assert "::: engram.agents.cores.rmc.RMC" in pages["reference/api/agents.cores.md"]
    assert "::: engram.learners.algorithms.vtrace.VTrace" in pages["reference/api/learners.algorithms.md"]
