"""A population's log that is missing or damaged ends `rl-population` with one line."""

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


DAMAGES: dict[str, Change] = {
    "empty": lambda _: [],
    "no start": lambda lines: lines[1:],
    "no JSON": lambda lines: [*lines[:1], "half of", *lines[1:]],
    "no fields": lambda lines: [*lines[:1], '{"event": "evaluation", "step": 1}', *lines[1:]],
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
    with pytest.raises(EngramError, match=r"population\.jsonl") as caught:
        population_view.main([str(run)])
    assert "\n" not in str(caught.value)
