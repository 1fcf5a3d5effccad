"""Evaluation during training (`--eval-every`) on levels that training never sees; selection of the best checkpoint."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from ...actors.episodes import UnfinishedError, known_means, play
from ...actors.unroll import EPISODE_COLUMNS
from ...base.errors import user_errors
from ..config.run_config import RunConfig
from ..metrics.member import Member
from ..runs.saved import Best
from ..runs.trained import actor_in_training, evaluation_envs

UNROLL_LENGTH = 20
MOST_STEPS = 30_000  # Step limit of an episode: without one, the evaluation of a stuck policy might never end


class Evaluator:
    """Evaluation episodes in this process, between two updates, with separate environments and random streams.

    The levels of an evaluation depend on the run's seed and on the number of evaluations due before it: a resumed run
    plays the same levels as an uninterrupted one.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config, self.factory = config, replace(config.factory(), imitate="")
        with user_errors(
            f"--eval-every {config.eval_every} needs a second environment; without it, use rl-eval after training"
        ):
            self._num_envs = evaluation_envs(self.factory, config.eval_episodes)

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Evaluate a member if an evaluation became due after step `before`; its next row of metrics has the result.
        `at_step` is called after each step of the environments; an exception from it ends the evaluation."""
        index = member.steps // self.config.eval_every
        if index == before // self.config.eval_every and not (member.done and before < member.steps):
            return
        seed = int(np.random.SeedSequence((self.config.seed, index)).generate_state(1)[0])
        sizes = {"num_envs": self._num_envs, "unroll_length": UNROLL_LENGTH}
        with closing(actor_in_training(self.factory, member.learner.agent, seed, **sizes)) as actor:
            actor.call_at_steps(at_step)
            most = MOST_STEPS * -(-self.config.eval_episodes // actor.batch.num_envs)
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
