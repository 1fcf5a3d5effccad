"""Evaluation of members during training (`--eval-every`), and the choice of the best checkpoint."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from ...actors.episodes import UnfinishedError, known_means, play
from ...actors.unroll import EPISODE_COLUMNS
from ...base.errors import user_errors
from ..config.run_config import RunConfig
from ..runs.saved import Best
from ..runs.trained import actor_in_training, evaluation_envs
from .member import Member

EVALUATION_UNROLL = 20
MOST_EVALUATION_STEPS = 30_000  # Step limit of an episode: without one, a stuck policy might never end it


class StopRequestedError(Exception):
    """Raised between two steps of an evaluation when a stop is requested."""


class Evaluator:
    """Evaluation episodes in this process, between two updates, with separate environments and random streams."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.factory = config, replace(config.factory(), imitate="")
        with user_errors(
            f"--eval-every {config.eval_every} needs a second environment; without it, use rl-eval after training"
        ):
            self._num_envs = evaluation_envs(self.factory, config.eval_episodes)

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Evaluate a member if an evaluation became due after step `before`; its next row of metrics has the result.
        `at_step` is called after each step of the environments; an exception from it ends the evaluation."""
        if (seed := member.due_seed(before, self.config.eval_every)) is None:
            return
        sizes = {"num_envs": self._num_envs, "unroll_length": EVALUATION_UNROLL}
        with closing(actor_in_training(self.factory, member.learner.agent, seed, **sizes)) as actor:
            actor.call_at_steps(at_step)
            most = MOST_EVALUATION_STEPS * -(-self.config.eval_episodes // actor.batch.num_envs)
            try:
                episodes = play(actor, self.config.eval_episodes, most_steps=most)
            except UnfinishedError as problem:
                member.notices.append(f"no evaluation at step {member.steps:,}: {problem}")
                return
        names = (*EPISODE_COLUMNS[1:], *actor.batch.episode_fields)
        member.note_evaluation({f"eval/{name}": mean for name, mean in known_means(names, episodes[:, 1:]).items()})


def best_now(best: Best | None, members: Sequence[Member], step: int) -> Best | None:
    """Determine the best checkpoint if one is written now at `step` (of all members); `best` is the best so far."""
    for member in members:
        score = member.score()
        if score is None or not math.isfinite(score.mean):
            continue
        evaluated = None if score.error is not None else member.version
        if best and evaluated is not None and (best.member, best.version) == (member.number, evaluated):
            continue  # the evaluation that made it the best one
        if best is None or best.gives_way_to(score.mean, score.error):
            best = Best(score.mean, step, member.number, score.episodes, score.error, evaluated)
    return best
