"""A trained agent that plays a game, and goes on remembering while a person takes over."""

from typing import Any

from ...agents.process import prepare_process
from ...envs.registration import is_environment
from ..api.agent import load_agent
from ..run.command_line import UsageError
from ..run.trained import evaluation_seed
from .game import Game


class Player:
    """Chooses the next action of a game.

    Args:
        path: a run directory, or zoo:NAME.
        checkpoint: latest, best or a step.
        member: of a population, -1 for the best.
        greedy: take the likeliest action instead of drawing one.
        env_args: parameters of the environment that differ from the training run's.
        seed: of levels and actions.
    """

    def __init__(
        self, path: str, *, checkpoint: str, member: int, greedy: bool, env_args: dict[str, Any], seed: int
    ) -> None:
        prepare_process(1)
        self._agent = load_agent(
            path, checkpoint=checkpoint, member=member, greedy=greedy, seed=seed, env_args=env_args
        )
        config = self._agent.config
        if not is_environment(config.env):
            raise UsageError(
                f"{path} plays {config.env}; rl-play shows engram's own environments, rl-eval --gif others, too"
            )
        self.game = Game(config.env, config.env_args | env_args, evaluation_seed(seed))
        self._began = True

    def choose(self, by_hand: int | None = None) -> int:
        """The agent's action in the present step; it sees the step and `by_hand` as its own action if that is given."""
        game = self.game
        action = int(self._agent.act(game.observation, game.reward, began=self._began)[0])
        self._began = game.over
        if by_hand is None:
            return action
        self._agent.acted(by_hand)
        return by_hand
