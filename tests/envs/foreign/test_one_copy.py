"""Environments of which only one may exist, and environments whose state is large."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engram.base.errors import EngramError
from engram.envs.foreign.batch import MOST_SAVED, ForeignBatch
from engram.launch.config.run_config import RunConfig
from engram.launch.metrics.evaluator import Evaluator
from slow_envs import Slow


def test_a_second_environment_that_cannot_be_made_is_answered_with_what_works(tmp_path: Path) -> None:
    make = partial(Slow, log=str(tmp_path / "log"), only_one=True)
    batch = ForeignBatch(make, 1, name="Slow")
    batch.close()
    with pytest.raises(ValueError, match="--envs-per-actor 1 --num-actors 1"):
        ForeignBatch(make, 2, name="Slow")


def test_an_evaluation_alongside_the_only_environment_names_rl_eval(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"log": str(tmp_path / "log"), "only_one": True}
    config = RunConfig(env="slow_envs:Slow", env_args=arguments, eval_every=100)
    batch = config.factory().make_batch(num_envs=1)
    with pytest.raises(EngramError, match="rl-eval after training"):
        Evaluator(config)
    batch.close()
    Evaluator(config)


def test_environments_are_saved_up_to_a_size() -> None:
    small = ForeignBatch(partial(Slow, size=1000), 2, name="Slow")
    assert small.save()["pickled"].nbytes > 2 * 8000
    large = ForeignBatch(partial(Slow, size=MOST_SAVED // 8 // 2), 2, name="Slow")
    with pytest.raises(ValueError, match="allowed: 4 MiB"):
        large.save()
