"""rl-train --list names everything that can be named."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from engram import zoo
from engram.agents.cores.registry import core_class, core_names
from engram.envs.registration import ENVIRONMENTS
from engram.launch.config.run_flags import PRESETS
from engram.launch.entry import rl_train
from engram.launch.figures import figure
from engram.launch.train.command import show_names
from engram.learners.algorithms import algorithm_names


def test_everything_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        rl_train(["--list"])
    assert stop.value.code == 0
    lines = {words[0]: words[1:] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    figures = [path.stem for path in Path(figure.__file__).with_name("data").glob("*.toml")]
    named = [
        *ENVIRONMENTS,
        *figures,
        *core_names(),
        *algorithm_names(),
        *PRESETS,
        *(f"zoo:{name}" for name in zoo.names()),
    ]
    assert [name for name in named if not lines.get(name)] == []
    assert len({" ".join(lines[name]) for name in ENVIRONMENTS}) == len(ENVIRONMENTS)


def test_lines_are_whole_sentences_with_their_brackets() -> None:
    lines = [(core_class(name).__doc__ or "").partition("\n")[0] for name in core_names()]
    assert [line for line in lines if not line.endswith(".")] == []
    assert any("[" in line for line in lines)
    out = io.StringIO()
    show_names(Console(width=400, file=out, highlight=False, markup=False))
    said = " ".join(out.getvalue().split())
    assert [line for line in lines if line not in said] == []
