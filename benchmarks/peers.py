"""engram's environments and torso behind the interfaces of other libraries."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from engram.actors.factory import observation_spec
from engram.agents.config import TorsoConfig
from engram.agents.torsos import make_torso
from engram.envs.registration import make_batch


class Envs:
    """Environments that are stepped as one batch; the step that ends an episode also begins the next one.

    Args:
        env: name for `rl-train --env`: one of engram's, or module:Class of a gymnasium.Env.
        env_args: the environment's parameters.
        embedding: units of the linear layer that is the torso; 0: convolutions.
        ended: called at the end of an episode with the number of steps so far and the episode's metrics.
    """

    def __init__(
        self,
        env: str,
        env_args: Mapping[str, Any],
        embedding: int = 0,
        ended: Callable[[int, dict[str, float]], None] = lambda steps, episode: None,
    ) -> None:
        self.env, self.env_args, self.embedding, self.ended = env, env_args, embedding, ended
        self.vector = self.make(1)
        self.space: Any = self.vector.single_observation_space
        self.num_actions = int(self.vector.single_action_space.n)
        self.steps = 0
        self.returns: Any = 0.0
        """[N] of the present episodes."""

    def make(self, num_envs: int, autoreset: AutoresetMode = AutoresetMode.DISABLED) -> Any:
        """A vector environment whose `reset` takes a mask; engine's are of Gymnasium's mode NEXT_STEP in addition."""
        module, _, name = self.env.partition(":")
        if name:
            return SyncVectorEnv([getattr(import_module(module), name)] * num_envs, autoreset_mode=autoreset)
        return make_batch(module, num_envs, **self.env_args)

    def start(self, num_envs: int, seed: int) -> np.ndarray:
        """The first observations [N, ...]."""
        self.vector = self.make(num_envs)
        return self.vector.reset(seed=seed)[0].copy()

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the observations for the next actions, those after this step, reward, terminated and truncated."""
        final, reward, terminated, truncated, _ = self.vector.step(actions)
        self.count(reward, terminated, truncated)
        observation, over = final, terminated | truncated
        if over.any():
            final = final.copy()
            observation = self.vector.reset(options={"reset_mask": over})[0]
        return observation.copy(), final, reward.astype(np.float32), terminated, truncated

    def count(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Count a step of all environments and the episodes that it ended."""
        self.steps += len(reward)
        self.returns = self.returns + reward
        for i in np.flatnonzero(terminated | truncated):
            solved = float(terminated[i] and reward[i] > 0)
            self.ended(self.steps, {"episode/return": float(self.returns[i]), "episode/solved": solved})
            self.returns[i] = 0.0

    def torso(self) -> Any:
        """The layers before the LSTM, as in rl-train."""
        return make_torso(observation_spec(self.space), TorsoConfig(embedding_size=self.embedding))


def their_torso(embedding: int) -> Any:
    """Make our torso a features extractor of stable-baselines3, which passes observations as float32."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Torso(BaseFeaturesExtractor):
        def __init__(self, observation_space: Any) -> None:
            torso = make_torso(observation_spec(observation_space), TorsoConfig(embedding_size=embedding))
            super().__init__(observation_space, int(torso.output_size))
            self.torso = torso

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return self.torso(observations)

    return Torso


def lstm_policy(embedding: int = 0) -> dict[str, Any]:
    """Return RecurrentPPO's `policy_kwargs` for our network: our torso, one LSTM of 256 for policy and value."""
    return {
        "features_extractor_class": their_torso(embedding),
        "net_arch": [],
        "lstm_hidden_size": 256,
        "shared_lstm": True,
        "enable_critic_lstm": False,
    }


def vector_env(num_envs: int, seed: int, envs: Envs | None = None, batched: bool = True) -> Any:
    """Make `num_envs` environments with the interface of stable-baselines3.

    Args:
        num_envs: number of environments, at least 1.
        seed: seed of the levels.
        envs: the environments; BoxWorld if not given.
        batched: stepped as one batch, or BoxWorld through DummyVecEnv and single environments.
    """
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

    if not batched:
        return DummyVecEnv([lambda: gymnasium.make("engram/BoxWorld-v0")] * num_envs)
    batch = envs or Envs("boxworld", {})

    class Batched(VecEnv):
        """Their autoreset: the step that ends an episode shows the next one's start."""

        def __init__(self) -> None:
            super().__init__(num_envs, batch.space, batch.vector.single_action_space)
            self.no_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

        def reset(self) -> Any:
            return batch.start(num_envs, seed)

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            observation, final, reward, terminated, truncated = batch.step(self.actions)
            over = terminated | truncated
            infos = self.no_infos
            if over.any():
                infos = [{} for _ in infos]
                for i in np.flatnonzero(over):
                    infos[i] = {"terminal_observation": final[i], "TimeLimit.truncated": truncated[i]}
            return observation, reward, over, infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * num_envs

    return Batched()
