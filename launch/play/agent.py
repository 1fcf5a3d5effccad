"""A trained agent that plays a game, and updates its recurrent state while the user plays."""

from typing import Any

from ...agents.process import prepare_process
from ...base.errors import refuse
from ...envs.registration import is_environment
from ..api.agent import load_agent
from ..run.trained import evaluation_seed
from .game import Game


class Player:
    """Chooses the next action of a game; `path` is a run directory or zoo:NAME, `options` are those of `load_agent`."""

    def __init__(self, path: str, *, env_args: dict[str, Any], seed: int, **options: Any) -> None:
        prepare_process(1)
        self._agent = load_agent(path, seed=seed, env_args=env_args, **options)
        config = self._agent.config
        refuse(
            not is_environment(config.env),
            f"{path} plays {config.env}; rl-play shows engram's own environments, rl-eval --gif others, too",
        )
        self.game = Game(config.env, config.env_args | env_args, evaluation_seed(seed))
        self._began = True

    def choose(self, by_hand: int | None = None) -> int:
        """The agent's action in the current step; `by_hand`, if set, replaces it as the last action in the agent's
        input."""
        game = self.game
        action = int(self._agent.act(game.observation, game.reward, began=self._began)[0])
        self._began = game.over
        if by_hand is None:
            return action
        self._agent.acted(by_hand)
        return by_hand
