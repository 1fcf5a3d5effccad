"""The other libraries of run.py, each with its own settings; `kind` of a peer is the name of a function here.

* `cleanrl`: recurrent PPO in one file as CleanRL has it, see recurrent_ppo_single_file.py. Exact recurrent states.
* `sb3`: sb3-contrib's RecurrentPPO, 32 environments, rollouts of 40 steps, 1 or 4 epochs, entropy cost .005. Exact.
* `torchrl`: its PPO, LSTMModule and GAE, 64 environments, rollouts of 32 steps, 4 epochs. Exact: sequences are split at
  the ends of episodes. It has no recurrent PPO to start from: the loop here follows its examples.
* `sample_factory`: APPO, here synchronous and serial, 64 environments, its defaults otherwise. Exact recurrent
  states; by default a truncated episode counts as terminated.
* `rllib`: PPO, 32 environments, 4 epochs. Its own network: the same convolutions or embedding, without the planes of
  positions. Sequences of 20 steps are padded. The CPU time of Ray's other processes is not counted.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.wrappers.vector import DtypeObservation
from peers import Envs, lstm_policy, vector_env
from run import LAST, Score


def cleanrl(envs: Envs, score: Score, lr: float, seed: int, num_envs: int) -> None:
    """Recurrent PPO in one file."""
    from recurrent_ppo_single_file import train

    train(envs, num_envs, lr, LAST, seed, score.over)


def sb3(envs: Envs, score: Score, lr: float, seed: int, n_epochs: int) -> None:
    """sb3-contrib's RecurrentPPO."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return not score.over()

    RecurrentPPO(
        "MlpLstmPolicy",
        vector_env(32, seed, envs),
        n_steps=40,
        batch_size=1280 // n_epochs,
        n_epochs=n_epochs,
        learning_rate=lr,
        ent_coef=0.005,
        seed=seed,
        device="cpu",
        policy_kwargs=lstm_policy(envs.embedding),
    ).learn(LAST, callback=Watch())


def torchrl(envs: Envs, score: Score, lr: float, seed: int) -> None:
    """torchrl's PPO with LSTMModule."""
    import torch
    from tensordict import TensorDict
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
    from tensordict.nn import TensorDictSequential as Sequential
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase, InitTracker, TransformedEnv
    from torchrl.modules import LSTMModule, set_recurrent_mode
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    num_envs, steps = 64, 32
    torch.manual_seed(seed)

    class Batch(EnvBase):
        def __init__(self) -> None:
            super().__init__(batch_size=[num_envs])
            first = torch.from_numpy(envs.start(num_envs, seed))
            self.observation_spec = Composite(
                observation=Unbounded(first.shape, dtype=first.dtype), shape=self.batch_size
            )
            self.action_spec = Categorical(envs.num_actions, shape=self.batch_size)
            self.reward_spec = Unbounded((num_envs, 1))
            self.observation = first

        def _reset(self, tensordict: Any = None, **_: Any) -> Any:
            return TensorDict({"observation": self.observation}, self.batch_size)  # where `_reset`, a new episode's

        def _step(self, tensordict: Any) -> Any:
            after, final, *outcome = envs.step(tensordict["action"].numpy())
            self.observation = torch.from_numpy(after)
            reward, terminated, truncated = (torch.from_numpy(each)[:, None] for each in outcome)
            values = {"observation": torch.from_numpy(final), "reward": reward, "terminated": terminated}
            return TensorDict(values | {"truncated": truncated, "done": terminated | truncated}, self.batch_size)

        def _set_seed(self, seed: int | None) -> None: ...

    torso = envs.torso()

    class Torso(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            count = observation.ndim - len(envs.space.shape)
            return torso(observation.flatten(0, count - 1)).unflatten(0, observation.shape[:count])

    first = Torso()
    first.torso = torso
    lstm = LSTMModule(int(torso.output_size), 256, in_key="features", out_key="hidden")
    common = (TensorDictModule(first, ["observation"], ["features"]), lstm)
    logits = TensorDictModule(nn.Linear(256, envs.num_actions), ["hidden"], ["logits"])
    sample = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    policy = ProbabilisticTensorDictSequential(*common, logits, sample)
    value = Sequential(*common, TensorDictModule(nn.Linear(256, 1), ["hidden"], ["state_value"]))
    env = TransformedEnv(Batch(), InitTracker())
    env.append_transform(lstm.make_tensordict_primer())
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value, shifted=True, deactivate_vmap=True)
    loss = ClipPPOLoss(policy, value, clip_epsilon=0.2, entropy_coeff=0.01, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=lr)
    for data in Collector(env, policy, frames_per_batch=num_envs * steps, total_frames=LAST):
        for _ in range(4):
            with torch.no_grad(), set_recurrent_mode(True):
                advantage(data)
            for chosen in torch.randperm(num_envs).chunk(4):
                with set_recurrent_mode(True):
                    losses = loss(data[chosen])
                sum(each for name, each in losses.items() if name.startswith("loss_")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        if score.over():
            return


def sample_factory(envs: Envs, score: Score, lr: float, seed: int) -> None:
    """sample-factory's APPO in one process."""
    import tempfile

    import torch
    from sample_factory.algo.runners import runner
    from sample_factory.algo.utils.context import global_model_factory
    from sample_factory.algo.utils.env_info import extract_env_info
    from sample_factory.algo.utils.make_env import BatchedVecEnv
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.model.encoder import Encoder
    from sample_factory.train import make_runner

    num_envs = 64

    class Batch(gymnasium.Env[Any, Any]):
        num_agents, is_multiagent = num_envs, True
        observation_space, action_space = envs.space, envs.vector.single_action_space
        infos: Any = [{}] * num_envs

        def reset(self, **_: Any) -> Any:
            return envs.start(num_envs, seed), self.infos

        def step(self, action: Any) -> Any:
            observation, _, *outcome = envs.step(action)
            if score.over():
                config.train_for_env_steps = 0
            return observation, *outcome, self.infos

    class Torso(Encoder):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.torso = envs.torso()

        def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.torso(observation["obs"])

        def get_out_size(self) -> int:
            return int(self.torso.output_size)

    runner.obtain_env_info_in_a_separate_process = lambda config: extract_env_info(BatchedVecEnv(Batch()), config)
    # Its wrappers expect Gymnasium below 1.0, whose wrappers have the attributes of what they wrap.
    gymnasium.Wrapper.__getattr__ = lambda self, name: getattr(self.__dict__.get("env"), name)
    register_env("task", lambda *_, **__: Batch())
    global_model_factory().register_encoder_factory(lambda config, space: Torso(config))
    settings = {"env": "task", "seed": seed, "learning_rate": lr, "device": "cpu", "train_dir": tempfile.mkdtemp()}
    settings |= {"serial_mode": True, "async_rl": False, "batched_sampling": True, "num_workers": 1}
    settings |= {
        "num_envs_per_worker": 1,
        "worker_num_splits": 1,
        "rnn_type": "lstm",
        "rnn_size": 256,
        "num_batches_per_epoch": 2,
    }
    arguments = [f"--{name}={setting}" for name, setting in (settings | {"train_for_env_steps": LAST}).items()]
    config, trainer = make_runner(parse_full_cfg(parse_sf_args(arguments)[0], arguments))
    trainer.init()
    trainer.run()


def rllib(envs: Envs, score: Score, lr: float, seed: int) -> None:
    """RLlib's PPO, new API stack, in one process."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    class Counted(VectorWrapper[Any, Any, Any, Any]):
        over = 0

        def step(self, actions: Any) -> Any:
            outcome = self.env.step(actions)
            envs.count(*outcome[1:4])
            envs.steps -= self.over  # these only began an episode
            self.over = int((outcome[2] | outcome[3]).sum())
            return outcome

    def make(config: Any) -> Any:
        batch = Counted(envs.make(config["num_envs"], AutoresetMode.NEXT_STEP))
        return DtypeObservation(batch, np.float32)

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    register_env("task", make)
    convolutions = {"conv_filters": [[12, 2, 1], [24, 2, 1]], "head_fcnet_hiddens": []}
    layers = {"fcnet_hiddens": [envs.embedding]} if envs.embedding else convolutions
    model = DefaultModelConfig(use_lstm=True, lstm_cell_size=256, max_seq_len=20, vf_share_layers=True, **layers)
    algorithm = (
        PPOConfig()
        .environment("task")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=32, gym_env_vectorize_mode="vector_entry_point")
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .training(lr=lr, train_batch_size_per_learner=4096, minibatch_size=512, num_epochs=4)
        .debugging(seed=seed)
        .build_algo()
    )
    while not score.over():
        algorithm.train()
    ray.shutdown()
