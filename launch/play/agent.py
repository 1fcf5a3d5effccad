"""A trained agent that plays a game, and goes on remembering while a person takes over."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...agents.process import prepare_process
from ...agents.values import EnvOutput
from ...envs.registration import is_world
from ..run.command_line import UsageError
from ..run.trained import evaluation_seed, make_actor, open_run
from ..run.trainees import chosen_members
from .game import Game


class Player:
    """Chooses the next action of a game.

    Args:
        path: a run directory, or zoo:NAME.
        checkpoint: latest, best or a step.
        member: of a population, -1 for the best.
        greedy: take the likeliest action instead of drawing one.
        env_args: parameters of the world that differ from the training run's.
        seed: of levels and actions.
    """

    def __init__(
        self, path: str, *, checkpoint: str, member: int, greedy: bool, env_args: dict[str, Any], seed: int
    ) -> None:
        prepare_process(1)
        trained, _, trainees, _ = open_run(path, checkpoint)
        if not is_world(trained.env):
            raise UsageError(
                f"{path} plays {trained.env}; rl-play shows engram's own worlds, rl-eval --gif others, too"
            )
        factory = replace(trained.factory(), env_args=trained.env_args | env_args)
        weights = trainees[chosen_members(trainees, member, False)[0]].weights
        actor = make_actor(factory, weights, seed=seed, greedy=greedy, num_envs=1, unroll_length=1)
        self.game = Game(trained.env, factory.env_args, evaluation_seed(seed))
        self._agent, self._state, self._generator = actor.agent, actor.state, actor.generator

    def choose(self, by_hand: int | None = None) -> int:
        """The agent's action in the present step; it sees the step and `by_hand` as its own action if that is given."""
        game = self.game
        output, state = self._agent.step(
            EnvOutput(
                torch.from_numpy(game.observation),
                torch.tensor([game.reward], dtype=torch.float32),
                torch.tensor([game.terminated]),
                torch.tensor([game.truncated]),
            ),
            self._state,
            self._generator,
        )
        if by_hand is not None:
            state = state._replace(previous_action=torch.from_numpy(np.array([by_hand])))
        self._state = state
        return int(output.action[0]) if by_hand is None else by_hand
