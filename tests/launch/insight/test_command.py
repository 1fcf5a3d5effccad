"""rl-look: pages of a trained run, and one clear line for every mistake."""

from pathlib import Path

import pytest

from engram.launch.entry import rl_look as run
from engram.launch.insight import command, page


def look(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_writes_a_page(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "page.html"
    assert look(finished_run, "--html", html, "--level", "goal=right") == 0
    assert "open it in a browser" in capsys.readouterr().out
    text = html.read_text()
    assert text.count('"steps":') == 1
    assert "t-maze with gru" in text
    assert '"goal":["right","right"' in text


def test_an_episode_that_was_cut_off_is_reported(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "record", lambda actor: page.record(actor, most=4))
    html = tmp_path / "page.html"
    assert look(finished_run, "--html", html) == 0
    assert "the episode is cut off after" in capsys.readouterr().out
    assert html.read_text().count('"steps":') == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere contains no run"),
        (["{run}", "--checkpoint", "bset"], "allowed: latest, best, or a step: step-"),
        (["{run}", "--level", "gaol=left"], "unknown fact 'gaol'; did you mean: goal"),
        (["{run}", "--level", "goal=up"], "goal is 'up'; allowed: left, right"),
        (["{run}", "--level", "place=maze"], "none of 4096 levels begins with"),
        (["{run}", "--member", "2"], "no population"),
        (["{run}", "--htm", "x"], "did you mean: --html"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    finished_run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert look(*(word.replace("{run}", str(finished_run)) for word in words)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("rl-look: ")
    assert said in lines[0]


@pytest.mark.parametrize("words", [["--html", "no/such/folder/x.html"], ["--seed", "-1"]])
def test_values_out_of_range_exit_with_code_2(
    finished_run: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert look(finished_run, *words) == 2
    assert words[0][2:] in capsys.readouterr().err
