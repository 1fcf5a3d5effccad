"""The agent: torso -> memory core -> policy and value heads.

Actors call `step`, the learner calls `unroll`; both compute the same function of the same steps (tested).
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from ..base import compiled
from .config import AgentConfig
from .cores.core import CoreState, Step, readable, reset_state
from .cores.fast.bf16 import as_learned
from .cores.registry import core_class, make_core
from .cores.simple import bounded
from .normalization import Moments, PrivilegedCritic, RescaledHead, symlog
from .prediction import REWARD, MapPrediction, MapSpec, Prediction
from .specs import ActionSpec, BoxSpec, ObservationSpec, as_input, best, masked, no_action, sample
from .torsos import make_torso
from .unique_observations import TorsoCache, once_each
from .values import AgentOutput, EnvOutput, ObservationTensor, map_leaves

LOG_DEVIATIONS = (-5.0, 2.0)  # Bounds of a Gaussian policy's log standard deviations
PRIVILEGED, MAP = "privileged", "map"  # Names of extras, or of observation entries that the torso does not read
PREPARED_FROM = 4  # Shortest unroll for which preparing `step` saves more time than it takes


class AgentState(NamedTuple):
    """Recurrent state of an agent between steps; leaves [B, ...]."""

    core: CoreState
    previous_action: Tensor  # [B, ...], shaped like actions; `no_action` at the start of an episode
    elapsed: Tensor  # int64 [B]: steps since the start of the episode
    over: Tensor  # bool [B]: the last step ended its episode, so the next step starts from the initial state


class AgentUnroll(NamedTuple):
    """Outputs of the learner's forward pass over R steps of B environments."""

    logits: Tensor  # [R, B, ...] as `AgentOutput.logits`
    value: Tensor  # [R, B]
    auxiliary: Tensor | None  # [R, B]: the core's own loss (MNM's meta loss), or None
    prediction: Tensor | None  # [R - 1, B]: error of the prediction, or None
    features: Tensor  # [R, B, H]: outputs of the core, inputs of the heads


class Agent(nn.Module):
    """Policy and value function with memory, for one kind of observation and action."""

    def __init__(
        self,
        observation: ObservationSpec,
        action: ActionSpec,
        config: AgentConfig,
        privileged: int = 0,
        seen: MapSpec | None = None,
    ) -> None:
        super().__init__()
        self.action_spec = action
        self.config = config
        self.torso = make_torso(observation, config.torso)
        self._encoder = TorsoCache(self.torso)
        self._unrolling = False  # Whether weights are constant between steps: features of observations are cached
        self._prepares = False  # Whether `step` then also prepares the core's step
        self._core_step: Step | None = None  # The core's step, prepared for the current weights
        extra = config.previous_action * action.num_outputs + config.previous_reward + (config.time_horizon > 0)
        self.rewards = Moments(1, memory=1e6) if config.previous_reward and not config.previous_reward_clip else None
        image, read = getattr(self.torso, "image", None), getattr(core_class(config.core), "image_options", None)
        sizes = read(*image) if image and read else {}  # a core registered by another package may be a function
        options = config.core_args if sizes.keys() & config.core_args else sizes | config.core_args
        self.core = make_core(config.core, int(self.torso.output_size) + extra, **options)  # pyright: ignore
        self.policy = nn.Linear(self.core.output_size, action.num_outputs)
        with torch.no_grad():
            self.policy.weight.mul_(config.policy_scale)
        if isinstance(action, BoxSpec):
            self.log_deviation = nn.Parameter(torch.zeros(action.size))
        self.critic = PrivilegedCritic(self.core.output_size, privileged) if privileged else None
        width = self.core.output_size if self.critic is None else self.critic.output_size
        self.value = (RescaledHead if config.normalize_returns else nn.Linear)(width, 1)
        self.prediction = None
        hidden, inputs = config.prediction_size, self.core.output_size + action.num_outputs
        if config.predict == "map" and seen is not None:
            self.prediction = MapPrediction(seen, self.core.output_size, hidden)
        elif hidden and config.predict == "observation":
            self.prediction = Prediction(observation, inputs, hidden, config.torso.image_layout)
        elif hidden:  # a shorter memory, since the frequency of rewards differs between levels of a curriculum
            self.prediction = Prediction(REWARD, inputs, hidden, memory=1e6)
        self.rounded = False  # Whether `step` and `respond` use bfloat16 factors, as the learner does
        self.greedy = False  # Whether `step` takes the most likely action instead of sampling one

    @property
    def units(self) -> RescaledHead | None:
        """The value head if it predicts normalized returns, else None."""
        return self.value if isinstance(self.value, RescaledHead) else None

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of environment values used in addition to the torso's inputs."""
        used = {PRIVILEGED: self.critic is not None, MAP: isinstance(self.prediction, MapPrediction)}
        return tuple(name for name, uses in used.items() if uses)

    @property
    def unobserved(self) -> bool:
        """Whether any running moments of the inputs have no data yet; synchronizes with the device."""
        return any(part.floor is None and part.unused for part in self.modules() if isinstance(part, Moments))

    def initial_state(self, batch_size: int) -> AgentState:
        """Return the state before the first step of an episode."""
        device = self.policy.weight.device
        return AgentState(
            core=self.core.initial_state(batch_size),
            previous_action=no_action(self.action_spec, batch_size, device),
            elapsed=torch.zeros(batch_size, dtype=torch.int64, device=device),
            over=torch.zeros(batch_size, dtype=torch.bool, device=device),
        )

    def begin_unroll(self, steps: int) -> None:
        """Cache features of observations during the next `steps` calls to `step`, until `end_unroll`; weights must not
        change meanwhile. The cache starts empty, so results depend only on the weights and the start of the unroll."""
        if not compiled.enabled:
            return
        self._encoder.forget()
        self._unrolling = self.policy.weight.device.type == "cpu"
        self._prepares, self._core_step = self._unrolling and steps >= PREPARED_FROM, None

    def end_unroll(self) -> None:
        self._unrolling, self._prepares, self._core_step = False, False, None

    @as_learned
    def features(self, observation: ObservationTensor) -> Tensor:
        """Encode observations [B, ...] as features [B, F]; in an unroll, each distinct observation only once."""
        return self._encoder(observation) if self._unrolling else self.torso(observation)

    @torch.inference_mode()
    def step(
        self, env: EnvOutput, state: AgentState, generator: Generator | None = None, initial: AgentState | None = None
    ) -> tuple[AgentOutput, AgentState]:
        """Act on one step [B, ...]: reset where the last step ended an episode, then run one forward pass for all B.
        `initial` is the initial state, if already computed."""
        if self._prepares and self._core_step is None:
            self._core_step = self._prepare(state)
        output, after = self._advance(env, state, self.features(env.observation), initial, self._core_step)
        logits, value = self._heads(output, env)
        action = best(self.action_spec, logits) if self.greedy else sample(self.action_spec, logits, generator)
        return AgentOutput(action, logits, value), after._replace(previous_action=action)

    @as_learned
    def _prepare(self, state: AgentState) -> Step:
        return self.core.acting(state.core, len(state.over))

    def respond(
        self, env: EnvOutput, state: AgentState, features: Tensor | None = None, initial: AgentState | None = None
    ) -> tuple[Tensor, Tensor, AgentState]:
        """Return logits and values of one step, and the next state, whose `previous_action` is not yet updated."""
        output, after = self._advance(env, state, features, initial)
        return *self._heads(output, env), after

    @as_learned
    def _advance(
        self,
        env: EnvOutput,
        state: AgentState,
        features: Tensor | None,
        initial: AgentState | None,
        core_step: Step | None = None,
    ) -> tuple[Tensor, AgentState]:
        over, core = state.over, state.core
        if not readable(over) or bool(over.any()):
            initial = self.initial_state(over.shape[0]) if initial is None else initial
            state = AgentState(core, *(reset_state(*both, over) for both in zip(state[1:], initial[1:], strict=True)))
            core = core if core_step else reset_state(core, initial.core, over)
        encoded: Tensor = self.torso(env.observation) if features is None else features
        inputs = self._inputs(encoded, state.previous_action, env.reward, state.elapsed)
        output, core_state = core_step(inputs, over, core) if core_step else self.core(inputs, core)
        over = env.terminated | env.truncated
        return output, state._replace(core=core_state, elapsed=state.elapsed + 1, over=over)

    def unroll(self, env: EnvOutput, action: Tensor, state: AgentState, bptt_length: int | None = None) -> AgentUnroll:
        """Run the learner's forward pass over R steps: env [R, B, ...], actions [R - 1, B, ...] of steps 0 to R - 2.
        `state` is the actor's state at step 0; gradients are truncated every `bptt_length` steps."""
        steps, batch = env.reward.shape
        over = env.terminated | env.truncated
        # Step t starts an episode if step t-1 ended one; `state` contains the flag of the step before step 0.
        reset = torch.cat([state.over.unsqueeze(0), over[:-1]])
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.torso.fixed_features):
            observation = map_leaves(lambda x: x.flatten(0, 1), env.observation)
            features = once_each(self.torso, observation) if compiled.enabled else self.torso(observation)
        inputs = self._inputs(features.unflatten(0, (steps, batch)), *self._history(env, action, state, reset))
        outputs, _, auxiliary = self.core.unroll(inputs, reset, state.core, bptt_length)
        logits, value = self._heads(outputs, env)
        return AgentUnroll(logits, value, auxiliary, self._prediction_error(outputs, action, env), outputs)

    def observe(self, env: EnvOutput) -> None:
        """Add R steps of B environments to the running statistics of inputs, torso and prediction."""
        if self.rewards is not None:
            self.rewards.update(env.reward.reshape(-1, 1), float(env.reward.numel()))
        if isinstance(self.prediction, Prediction):
            self.prediction.observe(self._to_predict(env))
        if self.critic is not None and (privileged := _extra(env, PRIVILEGED)) is not None:
            self.critic.moments.update(privileged.flatten(0, -2), float(env.reward.numel()))
        self.torso.observe(map_leaves(lambda x: x.flatten(0, 1), env.observation))  # pyright: ignore

    def _history(self, env: EnvOutput, action: Tensor, state: AgentState, reset: Tensor) -> tuple[Tensor, ...]:
        """Return previous action, reward and elapsed steps at every step [R, B], as in `step`."""
        none = no_action(self.action_spec, reset.shape[1], reset.device)
        none = none.expand(reset.shape[0], *none.shape)
        previous = torch.cat([state.previous_action.unsqueeze(0), action])
        previous = torch.where(reset.reshape(*reset.shape, *([1] * (previous.dim() - 2))), none, previous)
        if not self.config.time_horizon:
            return previous, env.reward, state.elapsed
        steps = torch.arange(len(reset), device=reset.device).unsqueeze(1)
        begun = torch.where(reset, steps, -1).cummax(0).values  # Step at which the episode began; -1: before step 0
        return previous, env.reward, torch.where(begun < 0, state.elapsed + steps, steps - begun)

    def _inputs(self, features: Tensor, previous_action: Tensor, reward: Tensor, elapsed: Tensor) -> Tensor:
        """Return the core's inputs: features [..., D] and the configured values of the previous step."""
        extra: list[Tensor] = []
        if self.config.previous_action:
            extra.append(as_input(self.action_spec, previous_action))
        if self.config.previous_reward:
            most, column = self.config.previous_reward_clip, reward.unsqueeze(-1)
            extra.append(column.clamp(-most, most) if self.rewards is None else symlog(self.rewards.normalized(column)))
        if self.config.time_horizon:
            extra.append((elapsed / self.config.time_horizon).unsqueeze(-1))
        return torch.cat([features, *extra], -1) if extra else features

    def _to_predict(self, env: EnvOutput) -> ObservationTensor:
        return env.observation if self.config.predict == "observation" else env.reward.unsqueeze(-1)

    def _prediction_error(self, outputs: Tensor, action: Tensor, env: EnvOutput) -> Tensor | None:
        """Return errors [R - 1, B] of predicting the next step, or the same step's map; None without gradients."""
        if self.prediction is None or not torch.is_grad_enabled():
            return None
        if isinstance(self.prediction, MapPrediction):
            maps = _extra(env, MAP)
            return None if maps is None else self.prediction(outputs[:-1], maps[:-1])
        inputs = torch.cat([outputs[:-1], as_input(self.action_spec, action)], -1)
        return self.prediction(inputs, map_leaves(lambda x: x[1:], self._to_predict(env)))

    def _heads(self, outputs: Tensor, env: EnvOutput) -> tuple[Tensor, Tensor]:
        logits = self.policy(outputs)
        if isinstance(self.action_spec, BoxSpec):
            logits = torch.cat([logits, bounded(self.log_deviation, *LOG_DEVIATIONS).expand_as(logits)], -1)
        value_inputs = outputs if self.critic is None else self.critic(outputs, _extra(env, PRIVILEGED))
        return masked(logits, env.action_mask), self.value(value_inputs).squeeze(-1)


def _extra(env: EnvOutput, name: str) -> Tensor | None:
    """Return an input that only losses and critic read: an extra or an observation entry; None if neither exists."""
    if env.extras is not None and name in env.extras:
        return env.extras[name]
    return env.observation.get(name) if isinstance(env.observation, dict) else None
