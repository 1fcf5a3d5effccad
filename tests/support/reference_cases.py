"""Agents and random batches for comparisons of the learner with the reference learner, and the comparison itself."""

import contextlib
import copy
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from engram.actors.packed import map_tensors
from engram.actors.unroll import Unroll
from engram.agents.agent import Agent, AgentState
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.cores.core import map_state
from engram.agents.cores.registry import core_parameters
from engram.agents.prediction import MapSpec
from engram.agents.specs import ActionSpec, ArraySpec, BoxSpec, ChoiceSpec, ObservationSpec
from engram.agents.values import AgentOutput, EnvOutput
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner
from engram.learners.population.vectorized import learn_together
from reference_learner import ReferenceLearner
from small_cores import SMALL

UPDATES, TOTAL_STEPS = 3, 1000
SEEN = MapSpec(2, 3, (4, 2))
GRID = ArraySpec((4, 5, 3), 1 / 255)
TORSOS: dict[str, tuple[ObservationSpec, TorsoConfig]] = {
    "none": (ArraySpec((7,)), TorsoConfig()),
    "convolutions": (GRID, TorsoConfig(conv_channels=(4, 5))),
    "strided": (GRID, TorsoConfig(conv_channels=(4, 5), conv_kernel=3, conv_strides=(1, 2))),
    "atari-resnet": (ArraySpec((9, 9, 3), 1 / 255), TorsoConfig(torso="atari-resnet")),
    "foveal": (ArraySpec((13, 14, 3), 1 / 255), TorsoConfig(torso="foveal")),
    "symbols": (GRID, TorsoConfig(conv_channels=(4,), symbol_size=3, balance_symbols=True)),
    "embeddings": (
        GRID,
        TorsoConfig(conv_channels=(), embedding_size=9, embedding_scale=5.4, embedding_bias=-1.0),
    ),
    "normalized": (
        {"grid": GRID, "vector": ArraySpec((3,))},
        TorsoConfig(conv_channels=(4,), normalize_observations=True, normalize_features=True, embedding_size=8),
    ),
}
"""Observations and torsos by name."""


class Case(NamedTuple):
    """An agent, how it learns, and the sizes of its batches."""

    spec: ObservationSpec
    agent: AgentConfig
    learner: LearnerConfig
    action: ActionSpec = ChoiceSpec((3,))
    steps: int = 10
    num_envs: int = 8


def small_agent(core: str, torso: TorsoConfig, **settings: Any) -> AgentConfig:
    """An agent with a core at a small size."""
    sizes = {key: value for key, value in SMALL.items() if key in core_parameters(core)}
    return AgentConfig(core=core, core_args=sizes, torso=torso, **settings)


def make_agent(case: Case, seed: int = 0) -> Agent:
    """A new agent in float64."""
    torch.manual_seed(seed)
    seen = SEEN if case.agent.predict == "map" else None
    return Agent(case.spec, case.action, case.agent, 3 * (case.agent.critic == "privileged"), seen).double()


def batches(case: Case, agent: Agent, seed: int = 0, number: int = UPDATES) -> list[Unroll]:
    """Random batches in float64: half of the observations repeat, episodes end in both ways, also at step 0."""
    generator = torch.Generator().manual_seed(seed)
    return [_batch(case, agent, generator) for _ in range(number)]


def _batch(case: Case, agent: Agent, generator: torch.Generator) -> Unroll:
    steps, num_envs, action = case.steps, case.num_envs, case.action

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def flags(*shape: int, share: float) -> Tensor:
        return torch.rand(shape, generator=generator) < share

    def actions(*shape: int) -> Tensor:
        if isinstance(action, BoxSpec):
            return normal(*shape, action.size)
        parts = [torch.randint(size, shape, generator=generator) for size in action.choices]
        return parts[0] if len(parts) == 1 else torch.stack(parts, -1)

    terminated = flags(steps + 1, num_envs, share=0.1)
    truncated = flags(steps + 1, num_envs, share=0.1) & ~terminated
    shown = torch.randint((steps + 1) * num_envs // 2, (steps + 1, num_envs), generator=generator)
    width = action.num_outputs * (2 if isinstance(action, BoxSpec) else 1)
    over = flags(num_envs, share=0.3)
    seen = _observations(case.spec, shown, generator)
    core = map_state(lambda leaf: _disturbed(leaf, generator), agent.core.initial_state(num_envs))
    return Unroll(
        initial_state=AgentState(core, actions(num_envs), torch.randint(20, (num_envs,), generator=generator), over),
        env=EnvOutput(
            seen, 3 * normal(steps + 1, num_envs), terminated, truncated, extras=_extras(case, generator) or None
        ),
        agent=AgentOutput(actions(steps, num_envs), 0.3 * normal(steps, num_envs, width), normal(steps, num_envs)),
        weights_version=torch.zeros(num_envs, dtype=torch.int64),
        member=0,
        actor=0,
        episodes=torch.zeros(0, 3),
        seconds=0.0,
    )


def _extras(case: Case, generator: torch.Generator) -> dict[str, Tensor]:
    """Values that the case's losses read in addition to observations."""
    shape, extras = (case.steps + 1, case.num_envs), dict[str, Tensor]()
    if case.agent.critic == "privileged":
        extras["privileged"] = 5 + 2 * torch.randn(*shape, 3, generator=generator, dtype=torch.float64)
    if case.learner.novelty_bonus:
        extras["novelty"] = torch.randint(2, shape, generator=generator).double()
    if case.agent.predict == "map":
        layers = [torch.randint(most + 1, (*shape, 2, 3), generator=generator) for most in SEEN.classes]
        layers[0][:, 0] = 0  # nothing was seen there
        extras["map"] = torch.stack(layers, -1).to(torch.uint8)
    if case.learner.imitate and isinstance(case.action, ChoiceSpec):
        parts = [torch.randint(size, shape, generator=generator) for size in case.action.choices]
        extras["player"] = parts[0] if len(parts) == 1 else torch.stack(parts, -1)
    return extras


def _disturbed(leaf: Tensor, generator: torch.Generator) -> Tensor:
    """A state that is not the initial one; counters stay."""
    if not leaf.is_floating_point():
        return leaf
    return leaf.detach() + 0.3 * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)


def _observations(spec: ObservationSpec, shown: Tensor, generator: torch.Generator) -> Any:
    """Observations [T, B, ...]: those of the numbers `shown` [T, B] among as many random ones."""
    if isinstance(spec, dict):
        return {key: _observations(part, shown, generator) for key, part in spec.items()}
    shape = (int(shown.max()) + 1, *spec.shape)
    if spec.scale == 1.0:
        return torch.randn(shape, generator=generator, dtype=torch.float64)[shown]
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)[shown]


def learned(learner: Learner) -> dict[str, Tensor]:
    """Weights, buffers and the optimizer's tensors by name."""
    state = learner.optimizer.state
    return _named(learner.agent, {name: state.get(p, {}) for name, p in learner.agent.named_parameters()})


def learned_by_reference(reference: ReferenceLearner) -> dict[str, Tensor]:
    """As `learned`."""
    return _named(reference.agent, reference.optimizer_state())


def _named(agent: Agent, moments: dict[str, Any]) -> dict[str, Tensor]:
    tensors = dict(agent.state_dict())
    for name, parts in moments.items():
        tensors |= {f"{name}: {part}": value for part, value in parts.items() if part != "step"}
    return tensors


def compare(
    cases: Sequence[Case], tolerance: float = 1e-10, learn: Callable[..., Any] = learn_together, **made: Any
) -> None:
    """Assert that the library's learners end where reference learners end, in metrics, weights and moments.

    One case is learned by `Learner.step`, several by one batched call as members of a population.
    """
    agents = [make_agent(case, seed) for seed, case in enumerate(cases)]
    references = [
        ReferenceLearner(copy.deepcopy(agent), case.learner, TOTAL_STEPS)
        for agent, case in zip(agents, cases, strict=True)
    ]
    learners = [Learner(agent, case.learner, TOTAL_STEPS) for agent, case in zip(agents, cases, strict=True)]
    each = [batches(case, agent, seed) for seed, (case, agent) in enumerate(zip(cases, agents, strict=True))]
    for update in zip(*each, strict=True):
        if len(cases) == 1:
            learners[0].learn(update[0])
        else:
            learn(learners, update)
        for learner, reference, batch in zip(learners, references, update, strict=True):
            _equal(learner.read()[-1], reference.step(batch) | {"learner/skipped": 0.0}, tolerance)
    for learner, reference in zip(learners, references, strict=True):
        _equal(learned(learner), learned_by_reference(reference), tolerance)
        assert (learner.steps, learner.updates) == (reference.steps, reference.updates)


def _equal(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        ours_, theirs_ = (torch.as_tensor(each, dtype=torch.float64) for each in (value, theirs[name]))
        torch.testing.assert_close(
            ours_, theirs_, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@contextlib.contextmanager
def in_double(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Let the library work in float64: new tensors, and what it makes float32 of."""
    default = torch.get_default_dtype()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def distance_in_float32(case: Case) -> float:
    """How far the float32 learner ends from the float64 reference learner, as a share of the weights' movement."""
    with pytest.MonkeyPatch.context() as patch, in_double(patch):
        agent = make_agent(case)
        begun, reference = copy.deepcopy(agent), ReferenceLearner(agent, case.learner, TOTAL_STEPS)
        learned_from = batches(case, agent)
        for batch in learned_from:
            reference.step(batch)
    learner = Learner(copy.deepcopy(begun).float(), case.learner, TOTAL_STEPS)
    for batch in learned_from:
        learner.learn(map_tensors(lambda x: x.float() if x.is_floating_point() else x, batch))
    ours, theirs, first = (parameters_to_vector(each.parameters()) for each in (learner.agent, agent, begun))
    return float((ours.double() - theirs).norm().detach() / (theirs - first).norm().detach())
