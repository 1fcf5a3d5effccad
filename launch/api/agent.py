"""A trained agent for custom loops: maps observations to actions and stores its recurrent state."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from ...actors.actor import Actor
from ...agents.agent import AgentState
from ...agents.process import settings_of_a_command
from ...agents.specs import ChoiceSpec
from ...agents.values import AgentOutput, EnvOutput, map_leaves
from ...base.errors import refuse
from ...envs.arrays import KEY, check_masks, flat_masks
from ...envs.foreign import ForeignBatch
from ...envs.foreign.values import map_parts
from ..config.plain import from_dict
from ..config.run_config import RunConfig
from ..evaluate.command import EvaluationConfig
from ..evaluate.command import evaluate as evaluate_weights
from ..evaluate.episodes import Summary
from ..runs.trained import ActingAgent, evaluation_factory, make_actor, open_run

Array = NDArray[Any]


class TrainedAgent:
    """Trained agent that acts in one environment or in a batch, with a recurrent state for each episode.

    An episode begins at the first `act` after `reset`; in a batch, also where `began` is set.

        observation, _ = env.reset()
        agent.reset()
        while not over:
            observation, reward, terminated, truncated, _ = env.step(agent.act(observation, reward))
    """

    def __init__(self, config: RunConfig, actor: Actor) -> None:
        self.config = config
        """Configuration of the run that trained the agent."""
        self.network, self._environment, self._generator = actor.agent, actor.batch, actor.generator
        vector: Any = actor.batch.vector if isinstance(actor.batch, ForeignBatch) else actor.batch
        self.observation_space: spaces.Space[Any] = vector.single_observation_space
        """Space of one environment's observations."""
        self.action_space: spaces.Space[Any] = vector.single_action_space
        """Space of one environment's actions."""
        self.needs_reward = self.network.config.previous_reward
        """Whether the reward of the last action is an input of the agent."""
        self.needs_action_mask = actor.batch.action_mask is not None
        """Whether the environment has action masks."""
        self._state: AgentState | None = None
        self._output: AgentOutput | None = None
        self._many = False

    def reset(self) -> None:
        """Reset the recurrent state: the next observation is the first of an episode, in any number of environments."""
        self._state, self._output, self._many = None, None, False

    def act(self, observation: Any, reward: Any = None, *, began: Any = None, action_mask: Any = None) -> Any:
        """Choose the action for one observation, or the actions for observations of B environments.

        Args:
            observation: observation in `observation_space`, or a batch [B, ...] (of every array in a Dict).
            reward: reward of the last action, a number or [B]; required if the core receives it (`needs_reward`).
            began: whether this observation is the first of an episode, a bool or [B]: with Gymnasium's vector
                environments, `terminated | truncated` of the previous step. Always true after `reset`.
            action_mask: mask of valid actions, bool (or 0 and 1) [A] or [B, A]; A counts the options of all choices;
                required in environments whose `info` has masks (`needs_action_mask`). The default is the mask in
                a Dict observation.

        Returns:
            The action in the environment's format: an int for one Discrete action, otherwise an array; [B, ...] for B.
        """
        count, many = self._count(observation)
        _refuse_cast(self.observation_space, observation)
        first = np.zeros(count, np.bool_) if began is None else _column("began", began, count, np.bool_)
        if self._state is None:
            self._state, first = self.network.initial_state(count), np.ones(count, np.bool_)
        states = len(self._state.over)
        message = f"{count} observations for the recurrent states of {states} environments; expected equal numbers"
        refuse(states != count, f"{message}, or reset() first")
        missing = reward is None and self.needs_reward and not first.all()
        refuse(missing, "reward is missing; expected: act(observation, reward), which the core reads")
        rewards = np.where(first, 0, 0 if reward is None else _column("reward", reward, count, np.float32))
        none, inputs = torch.zeros(count, dtype=torch.bool), self._read(observation, many)
        mask = self._mask(inputs, action_mask, count)
        self._output, self._state = self.network.step(
            EnvOutput(inputs, torch.from_numpy(rewards.astype(np.float32)), none, none, mask),
            self._state._replace(over=torch.from_numpy(first)),
            self._generator,
        )
        self._many = many
        actions = self._output.action.numpy()
        if isinstance(self._environment, ForeignBatch):
            actions = self._environment.as_the_environment_takes(actions)
        if many:
            return actions
        return int(actions[0]) if isinstance(self.action_space, spaces.Discrete) else actions[0]

    def acted(self, action: Any) -> None:
        """Set the action that was executed, in the network's numbering, if it differs from that of `act`."""
        assert self._state is not None, "call act() first"
        old = self._state.previous_action
        self._state = self._state._replace(previous_action=torch.as_tensor(action, dtype=old.dtype).reshape(old.shape))

    @property
    def memory(self) -> dict[str, Array]:
        """Arrays of the recurrent state by name, [K] or [B, K]; empty before the first `act`."""
        if self._state is None:
            return {}
        return {name: self._to_array(part) for name, part in self.network.core.describe(self._state.core).items()}

    @property
    def probabilities(self) -> Array:
        """Action probabilities of the last `act`, [A] or [B, A]; only for a single discrete choice."""
        spec = self.network.action_spec
        if not (isinstance(spec, ChoiceSpec) and len(spec.choices) == 1):
            raise ValueError(f"actions are of {self.action_space}; only a Discrete space has probabilities")
        return self._to_array(torch.softmax(self._last().logits, -1))

    @property
    def value(self) -> Array:
        """Value estimate of the last `act`, [] or [B]."""
        return self._to_array(self._last().value)

    def _mask(self, observed: Any, action_mask: Any, count: int) -> torch.Tensor | None:
        if action_mask is None and self.needs_action_mask and isinstance(observed, dict):
            action_mask = observed.get(KEY)
        if action_mask is None:
            expected = "act(observation, action_mask=info['action_mask'])"
            refuse(self.needs_action_mask, f"action_mask is missing; expected: {expected}")
            return None
        spec = self.network.action_spec
        assert isinstance(spec, ChoiceSpec), f"only discrete actions have masks, not {self.action_space}"
        mask = flat_masks(self.config.env, np.reshape(np.asarray(action_mask), (count, -1)), spec.num_outputs)
        check_masks(self.config.env, mask, spec.choices)
        return torch.from_numpy(np.array(mask, order="C"))

    def _last(self) -> AgentOutput:
        if self._output is None:
            raise ValueError("no action has been sampled yet; call act() first")
        return self._output

    def _to_array(self, values: torch.Tensor) -> Array:
        array = values.numpy(force=True).copy()
        return array if self._many else array[0]

    def _count(self, observation: Any) -> tuple[int, bool]:
        """Return the number of environments and whether they are a batch. Raises EngramError for another shape."""
        space, part = self.observation_space, observation
        while isinstance(space, spaces.Dict | spaces.Tuple):
            name = next(iter(space.spaces)) if isinstance(space, spaces.Dict) else 0
            wrong = isinstance(space, spaces.Dict) and (not isinstance(part, dict) or name not in part)
            refuse(wrong, f"observation is a {type(part).__name__}; expected a dict with {', '.join(map(str, space))}")
            space, part = space[name], part[name]  # pyright: ignore[reportArgumentType, reportCallIssue]
        shape, expected = np.shape(part), space.shape or ()
        if shape[1:] == expected and len(shape) > len(expected) and shape[0] > 0:
            return shape[0], True
        wrong = f"observation has shape {list(shape)}; expected {list(expected)}, or [B] before it"
        refuse(shape != expected, wrong)
        return 1, False

    def _read(self, observation: Any, many: bool) -> Any:
        if not many:
            observation = map_parts(lambda part: np.asarray(part)[None], observation)
        if isinstance(self._environment, ForeignBatch):
            observation = self._environment.as_agents_see(observation, self._count(observation)[0])
        else:
            observation = np.asarray(observation, self.observation_space.dtype)
        return map_leaves(lambda x: torch.from_numpy(np.array(x, order="C")), observation)


def _refuse_cast(space: spaces.Space[Any], values: Any) -> None:
    """Raise ValueError for values that the space's integer dtype cannot represent, such as an image scaled to 0..1."""
    if isinstance(space, spaces.Dict | spaces.Tuple) or not np.issubdtype(space.dtype, np.integer):
        return
    array = np.asarray(values)
    with np.errstate(invalid="ignore"):
        if array.dtype.kind not in "biuf" or not np.array_equal(array.astype(space.dtype), array):
            raise ValueError(f"observation of {array.dtype} would change when cast; expected values of {space}")


def _column(name: str, values: Any, count: int, dtype: Any) -> Array:
    column = np.asarray(values, dtype).reshape(-1)
    refuse(len(column) != count, f"{name} has {len(column)} values; expected {count}, one for every environment")
    return column


def load_agent(
    run: str | Path,
    *,
    checkpoint: str | int = "latest",
    member: int = -1,
    greedy: bool = False,
    seed: int = 0,
    env_args: dict[str, Any] | None = None,
) -> TrainedAgent:
    """Load a trained agent.

    Args:
        run: run directory, "zoo:NAME" for an agent included in engram, or folder or URL of a card (`rl-eval
            --card`).
        checkpoint: latest, best (highest mean return in training) or its step.
        member: member of a population, -1 for the best.
        greedy: take the most likely action instead of sampling one.
        seed: seed of the sampled actions, at least 0.
        env_args: parameters of the environment that differ from the training run's.

    Raises:
        ValueError: there is no such run, checkpoint or member; the message names the existing ones.
    """
    choice = chosen_agent(ActingAgent, run, checkpoint, env_args, member=member, greedy=greedy, seed=seed)
    trained = open_run(choice.run, choice.checkpoint)
    factory, weights = trained.factory(choice.env_args), trained.weights(choice.member)
    with torch.random.fork_rng([]):  # initial weights are sampled, and replaced immediately
        actor = make_actor(factory, weights, seed=choice.seed, greedy=choice.greedy)
    with closing(actor):  # acting needs only the environment's spaces
        return TrainedAgent(trained.config, actor)


def chosen_agent(cls: Any, run: object, checkpoint: object, env_args: object, **others: object) -> Any:
    """Convert the arguments of a call to an `ActingAgent` or another `AgentChoice`. Raises EngramError."""
    run = str(run) if isinstance(run, Path) else run
    checkpoint = str(checkpoint) if isinstance(checkpoint, int) else checkpoint
    return from_dict(cls, {"run": run, "checkpoint": checkpoint, "env_args": env_args or {}} | others)


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
    """Evaluate a trained agent in episodes with random streams that training never used; results equal `rl-eval`'s.

    Args:
        run, checkpoint, member, greedy: as for `load_agent`.
        episodes: number of episodes, at least 1.
        seed: seed of levels and actions, 0..2**64-1; no seed here repeats the random streams of training.
        env_args: parameters of the environment that differ from the training run's; without them
            pomdp-graph has split=test.

    Returns:
        Estimates, such as `estimates["return"]`: a mean with its 95% confidence interval; `split` contains estimates
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
        return evaluate_weights(factory, trained.weights(config.member), config)
