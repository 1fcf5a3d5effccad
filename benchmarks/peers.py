"""engram's BoxWorld and torso behind the interfaces of stable-baselines3."""

from typing import Any

import gymnasium
import numpy as np
import torch

from engram.actors.factory import observation_spec
from engram.agents.torsos import TorsoConfig, make_torso
from engram.envs.registration import make_batch


def their_torso() -> Any:
    """Our torso as a features extractor of theirs; they hand over observations as float32."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Torso(BaseFeaturesExtractor):
        def __init__(self, observation_space: Any) -> None:
            torso = make_torso(observation_spec(observation_space), TorsoConfig())
            super().__init__(observation_space, int(torso.output_size))
            self.torso = torso

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return self.torso(observations)

    return Torso


def lstm_policy() -> dict[str, Any]:
    """`policy_kwargs` of RecurrentPPO for our network: our torso, one LSTM of 256 for policy and value."""
    return {
        "features_extractor_class": their_torso(),
        "net_arch": [],
        "lstm_hidden_size": 256,
        "shared_lstm": True,
        "enable_critic_lstm": False,
    }


def vector_env(num_envs: int, seed: int, batched: bool = True, **env_args: Any) -> Any:
    """`num_envs` BoxWorld environments behind their interface.

    Args:
        num_envs: number of environments, at least 1.
        seed: seed of the levels.
        batched: through engram's batched engine, or through DummyVecEnv and single environments.
        env_args: the environment's parameters.
    """
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

    if not batched:
        return DummyVecEnv([lambda: gymnasium.make("engram/BoxWorld-v0", **env_args)] * num_envs)

    class Batched(VecEnv):
        """engram's batched engine with their autoreset: the step that ends an episode shows the next one's start."""

        def __init__(self) -> None:
            self.batch = make_batch("boxworld", num_envs, **env_args)
            super().__init__(num_envs, self.batch.single_observation_space, self.batch.single_action_space)
            self.reward = np.zeros(num_envs, np.float32)
            self.flags = np.zeros((2, num_envs), np.bool_)
            self.no_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

        def reset(self) -> Any:
            observation = self.batch.new_observation()
            self.batch.reset_into(observation, seed)
            return observation

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            observation = self.batch.new_observation()
            terminated, truncated = self.flags
            self.batch.step_into(self.actions, observation, self.reward, terminated, truncated)
            over = terminated | truncated
            infos = self.no_infos
            if over.any():
                infos = [{} for _ in infos]
                for i in np.flatnonzero(over):
                    infos[i] = {"terminal_observation": observation[i].copy(), "TimeLimit.truncated": truncated[i]}
                self.batch.reset_into(observation, mask=over)
            return observation, self.reward.copy(), over.copy(), infos

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
