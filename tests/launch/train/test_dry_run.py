"""`rl-train --dry-run` prints a configuration that --config accepts, and starts nothing."""

import tomllib
from pathlib import Path

import pytest

from engram.base.errors import EngramError
from engram.launch.config.plain import from_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import parse_run
from engram.launch.train import command
from runs import TINY


def test_the_configuration_is_printed_and_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "--lr", "3e-4", "--dry-run"]
    assert command.main(words) == 0
    printed = capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert from_dict(RunConfig, tomllib.loads(printed)) == parse_run(words[:-1])
    (tmp_path / "again.toml").write_text(printed)
    assert command.main(["--config", "again.toml", "--dry_run"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume", "x"], "--dry-run has no effect with --resume"),
        (["--seeds", "1,2"], "--dry-run has no effect with several runs"),
        ([*TINY, "--core-args", "hiden_size=3"], "has no option 'hiden_size'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str) -> None:
    with pytest.raises(EngramError, match=said):
        command.main([*words, "--dry-run"])
