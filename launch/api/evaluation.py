"""`engram.evaluate`: `rl-eval` as a function."""

from pathlib import Path
from typing import Any

from ...agents.process import settings_of_a_command
from ..evaluate.command import EvaluationConfig
from ..evaluate.command import evaluate as evaluate_weights
from ..evaluate.episodes import Summary
from ..run.trained import evaluation_factory, open_run
from ..run.trainees import chosen_members
from .agent import chosen_agent


def evaluate(
    run: str | Path,
    *,
    episodes: int = EvaluationConfig.episodes,
    checkpoint: str | int = EvaluationConfig.checkpoint,
    seed: int = EvaluationConfig.seed,
    member: int = EvaluationConfig.member,
    greedy: bool = EvaluationConfig.greedy,
    env_args: dict[str, Any] | None = None,
) -> Summary:
    """Evaluate a trained agent in episodes with random streams that training never used; the same values as `rl-eval`.

    Args:
        run: run directory, or "zoo:NAME" for an agent that comes with engram.
        episodes: number of episodes, at least 1.
        checkpoint: latest, best (highest mean return in training) or its step.
        seed: seed of levels and actions, 0..2**64-1; no seed here repeats the random streams of training.
        member: member of a population, -1 for the best.
        greedy: take the likeliest action instead of sampling one from the trained policy.
        env_args: parameters of the environment that differ from the training run's; without them
            pomdp-graph has split=test.

    Returns:
        The estimates, such as `estimates["return"]`: a mean with its 95% confidence interval; `split` contains them
        by kind of level.

    Raises:
        ValueError: there is no such run, checkpoint or member, or a value is not allowed.
    """
    config = chosen_agent(
        EvaluationConfig, run, checkpoint, env_args, episodes=episodes, seed=seed, member=member, greedy=greedy
    )
    trained = open_run(config.run, config.checkpoint)
    factory = evaluation_factory(trained.config, config.env_args)
    with settings_of_a_command():
        weights = trained.trainees[chosen_members(trained.trainees, config.member, False)[0]].weights
        return evaluate_weights(factory, weights, config)
