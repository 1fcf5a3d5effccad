"""A population's log that is missing or damaged ends every command with one line, and nothing is changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engram.base.errors import EngramError
from engram.launch.population import command as population_view
from engram.launch.train import command as train

WORDS = [
    *("--env", "pomdp-graph", "--env-args", "num_steps=8", "--core", "lstm", "--core-args", "hidden_size=4"),
    *("--local", "--envs-per-actor", "4", "--envs-per-update", "4", "--unroll-length", "8", "--log-every", "1"),
    *("--population", "2", "--pbt.warmup", "4", "--pbt.interval", "4", "--pbt.window", "2"),
]
Change = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("population") / "run"
    assert train.main([*WORDS, "--total-steps", "100", "--run-dir", str(run)]) == 0
    return run


def with_field(kind: str, name: str, value: object) -> Change:
    """A log in which a field of the first event of a kind has another value."""

    def change(lines: list[str]) -> list[str]:
        for number, line in enumerate(lines):
            event = json.loads(line)
            if event["event"] == kind:
                return [*lines[:number], json.dumps(event | {name: value}), *lines[number + 1 :]]
        raise AssertionError(f"no {kind} event in this log")

    return change


DAMAGES: dict[str, Change] = {
    "empty": lambda _: [],
    "no start": lambda lines: lines[1:],
    "lists": lambda lines: ["[1, 2]", *lines[1:]],
    "deep": lambda lines: ["[" * 100_000, *lines],
    "no JSON": lambda lines: ["half of", *lines],
    "kind is a list": with_field("start", "event", []),
    "members is a text": with_field("start", "members", "two"),
    "step is a text": with_field("evaluation", "step", "x"),
    "scores is short": with_field("evaluation", "scores", []),
    "decisions are numbers": with_field("evaluation", "decisions", [1, 2]),
    "evaluated are texts": with_field("evaluation", "evaluated", ["a"]),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
def test_a_damaged_log_is_one_line(whole: Path, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    log = run / "population.jsonl"
    if damage == "missing":
        log.unlink()
    else:
        log.write_text("".join(f"{line}\n" for line in DAMAGES[damage](log.read_text().splitlines())))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    for main, words in (
        (population_view.main, [str(run)]),
        (train.main, ["--resume", str(run), "--total-steps", "200"]),
    ):
        with pytest.raises(EngramError) as caught:
            main(words)
        assert "population.jsonl" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in before} == before
