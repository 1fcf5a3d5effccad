"""rl-export: ONNX models and archives of torch.export take the actions that engram takes."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.agents.agent import Agent
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.cores.core import Core
from engram.agents.cores.registry import core_names, core_parameters
from engram.agents.cores.simple import FeedforwardState
from engram.agents.specs import ActionSpec, ArraySpec, BoxSpec, ChoiceSpec, ObservationSpec
from engram.agents.values import EnvOutput, map_leaves
from engram.launch.entry import rl_export as run
from engram.launch.export.command import EXAMPLES, Step, onnx_model, traced
from small_cores import SMALL

STEPS, ENVS = 250, 8
"""About 40 episodes: one ends after 50 steps on average."""
logging.getLogger("torch.__trace").disabled = True  # pytest would format thousands of its records
GRID, VECTOR, PICTURE = ArraySpec((4, 4, 3), 1 / 255), ArraySpec((5,)), ArraySpec((36, 36, 3), 1 / 255)
Recorded = tuple[list[EnvOutput], list[np.ndarray], torch.Tensor, torch.Tensor, torch.Tensor]


def observations(spec: ObservationSpec, generator: torch.Generator) -> Any:
    if isinstance(spec, dict):
        return {key: observations(part, generator) for key, part in spec.items()}
    if spec.scale == 1.0:
        return torch.randn((ENVS, *spec.shape), generator=generator)
    return torch.randint(256, (ENVS, *spec.shape), generator=generator, dtype=torch.uint8)


def agent_of(observation: ObservationSpec, action: ActionSpec, **options: Any) -> Agent:
    """A new agent whose running moments, if it has any, have counted something."""
    torch.manual_seed(1)
    agent = Agent(observation, action, AgentConfig(policy_scale=3.0, **options)).requires_grad_(False)
    seen, flags = observations(observation, torch.Generator().manual_seed(2)), torch.zeros(1, ENVS)
    agent.observe(EnvOutput(map_leaves(lambda x: x[None], seen), flags, flags.bool(), flags.bool()))
    agent.greedy = True
    return agent


def recorded(agent: Agent, observation: ObservationSpec, masked: bool = False) -> Recorded:
    """Random steps with resets, and engram's greedy actions, logits and values."""
    generator = torch.Generator().manual_seed(3)
    steps: list[EnvOutput] = []
    outputs: list[Any] = []
    resets: list[np.ndarray] = []
    state, over = agent.initial_state(ENVS), torch.ones(ENVS, dtype=torch.bool)
    for _ in range(STEPS):
        # The first entry of an episode has no reward, as environments report it.
        reward = torch.where(over, 0.0, 2 * torch.randn(ENVS, generator=generator))
        resets.append(over.numpy())
        over = torch.rand(ENVS, generator=generator) < 0.02
        mask = None
        if masked:  # the first action of each choice is always valid, each other in half of the steps
            mask = torch.rand((ENVS, agent.action_spec.num_outputs), generator=generator) < 0.5
            mask[:, np.cumsum([0, *agent.action_spec.choices[:-1]])] = True
        env = EnvOutput(observations(observation, generator), reward, over, torch.zeros_like(over), mask)
        output, state = agent.step(env, state)
        steps.append(env)
        outputs.append(output)
    return steps, resets, *(torch.stack([getattr(each, name) for each in outputs]) for name in outputs[0]._fields)


def check_equal(step: Step, call: Any, record: Recorded) -> None:
    """Actions are equal at all steps, logits and values up to rounding; `call` maps named arrays to named arrays."""
    steps, resets, actions, logits, values = record
    inputs = {
        name: np.ones((ENVS, *x.shape[1:]), x.numpy().dtype) for name, x in step.example.items()
    }  # no initial state: resets set it
    elapsed = np.zeros(ENVS, np.int64)
    outputs: list[dict[str, np.ndarray]] = []
    for env, reset in zip(steps, resets, strict=True):
        # Where an episode starts the reward and the count of steps are not those of engram: they are ignored there.
        inputs |= {"reset": reset, "previous_reward": env.reward.numpy() + reset, "elapsed": elapsed}
        elapsed = np.where(reset, 0, elapsed) + 1
        if env.action_mask is not None:
            inputs["action_mask"] = env.action_mask.numpy()
        flat = env.observation if isinstance(env.observation, dict) else {"": env.observation}
        inputs |= {f"observation.{key}".rstrip("."): x.numpy() for key, x in flat.items()}
        outputs.append(call({name: inputs[name] for name in step.example}))
        inputs |= {name.removeprefix("next_"): x for name, x in outputs[-1].items() if name.startswith("next_")}
        inputs["previous_action"] = outputs[-1]["action"]
    assert list(outputs[0]) == step.outputs
    for name, expected in (("action", actions), ("logits", logits), ("value", values)):
        found = np.stack([each[name] for each in outputs])
        if expected.dtype == torch.int64:
            np.testing.assert_array_equal(found, expected.numpy())
        else:  # FWM's norm of what it reads can enlarge rounding at single steps; SHM's states grow to 1e5
            np.testing.assert_allclose(found, expected.numpy(), rtol=2e-5, atol=0.02)
            finite = expected.isfinite().numpy()
            size = max(1.0, np.abs(expected.numpy()[finite]).mean())
            assert np.abs(found[finite] - expected.numpy()[finite]).mean() < 3e-5 * size


def check_exports(agent: Agent, observation: ObservationSpec, masked: bool = False) -> Step:
    """Both kinds of export of an agent against the agent."""
    onnxruntime = pytest.importorskip("onnxruntime")
    record = recorded(agent, observation, masked)
    step = Step(agent, map_leaves(lambda x: x[:EXAMPLES], record[0][0].observation), masked)
    program = traced(step)
    module = program.module()

    def by_torch(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = module({name: torch.from_numpy(x) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in outputs.items()}

    with torch.inference_mode():
        check_equal(step, by_torch, record)
    model = onnx_model(step, program, {"core": "any"})
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(step.example)
    assert {each.shape[0] for each in session.get_inputs()} == {"batch"}
    assert session.get_modelmeta().custom_metadata_map == {"core": "any"}
    check_equal(step, lambda inputs: dict(zip(step.outputs, session.run(None, inputs), strict=True)), record)
    return step


@pytest.mark.nightly
@pytest.mark.parametrize("core", core_names())
def test_every_core_acts_as_in_engram(core: str) -> None:
    options = {key: value for key, value in (SMALL | {"num_layers": 1}).items() if key in core_parameters(core)}
    torso = TorsoConfig(conv_channels=(2,), image_layout="channels-last")
    inputs = {"previous_action": True, "previous_reward": True, "time_horizon": 40}
    step = check_exports(agent_of(GRID, ChoiceSpec((4,)), core=core, core_args=options, torso=torso, **inputs), GRID)
    assert list(step.example)[:5] == ["observation", "previous_action", "previous_reward", "elapsed", "reset"]


KINDS: dict[str, tuple[ObservationSpec, ActionSpec, dict[str, Any]]] = {
    "vector": (VECTOR, ChoiceSpec((3,)), {"normalize_observations": True, "embedding_size": 8}),
    "dict": ({"b": VECTOR, "a": GRID}, ChoiceSpec((2, 3)), {"normalize_features": True, "conv_channels": (2,)}),
    "symbols": (GRID, BoxSpec(2), {"symbol_size": 3, "balance_symbols": True, "normalize_observations": True}),
    "atari": (PICTURE, ChoiceSpec((3,)), {"torso": "atari"}),
    "atari-resnet": (PICTURE._replace(shape=(9, 9, 3)), ChoiceSpec((3,)), {"torso": "atari-resnet"}),
    "foveal": (PICTURE._replace(shape=(13, 14, 3)), ChoiceSpec((3,)), {"torso": "foveal"}),
}


@pytest.mark.parametrize(
    "kind", [kind if kind in ("dict", "symbols") else pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS]
)
def test_every_torso_and_kind_of_action_acts_as_in_engram(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.STEPS", 25 if kind.startswith("atari") else 125)
    observation, action, options = KINDS[kind]
    torso = TorsoConfig(image_layout="channels-last", **options)
    agent = agent_of(
        observation,
        action,
        core="gru",
        core_args={"hidden_size": 8},
        torso=torso,
        previous_action=kind == "dict",
        normalize_returns=kind == "symbols",
        prediction_size=4,
    )
    step = check_exports(agent, observation, masked=kind == "dict")
    assert ("action_mask" in step.example) == (kind == "dict")
    assert ("previous_action" in step.example) == (kind == "dict")
    assert "previous_reward" not in step.example


def export(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_the_command_writes_both_files_and_lists_inputs_and_outputs(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    model, archive = tmp_path / "agent.onnx", tmp_path / "agent.pt2"
    assert export(finished_run, "--onnx", model, "--torch-export", archive) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [word in captured.out for word in ("observation", "uint8", "state.h", "next_state.h", "[B, 8]")] == [
        True
    ] * 5
    loaded = onnx.load(model)
    onnx.checker.check_model(loaded)
    inputs = {
        value.name: torch.zeros([3, *(d.dim_value for d in value.type.tensor_type.shape.dim[1:])])
        for value in loaded.graph.input
    }
    inputs |= {"observation": inputs["observation"].byte(), "reset": torch.ones(3, dtype=torch.bool)}
    outputs = torch.export.load(archive).module()(inputs)
    assert {name: list(x.shape) for name, x in outputs.items()} == {
        "action": [3], "logits": [3, 5], "value": [3], "next_state.h": [3, 8],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{run}"], "no file is given; expected: "),
        (["nowhere", "--onnx", "x.onnx"], "nowhere contains no run"),
        (["{run}", "--onnx", "nowhere/x.onnx"], "there is no directory 'nowhere'"),
        (["{run}", "--onx", "x.onnx"], "did you mean: --onnx"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(*(word.format(run=finished_run) for word in words)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


class Looking(Core):
    """A core whose step depends on the numbers it reads, which no graph can hold."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.input_size = self.output_size = input_size
        self.scale = torch.nn.Parameter(torch.ones(()))

    def initial_state(self, batch_size: int) -> FeedforwardState:
        return FeedforwardState()

    def forward(self, inputs: torch.Tensor, state: FeedforwardState) -> tuple[torch.Tensor, FeedforwardState]:
        return (inputs if float(inputs.sum()) > 0 else -inputs), state


def test_a_core_that_cannot_be_traced_is_named() -> None:
    agent = agent_of(VECTOR, ChoiceSpec((2,)), core=f"{__name__}:Looking")
    with pytest.raises(
        ValueError, match=r"^torch.export cannot trace Looking with FlatTorso: .*data-dependent"
    ) as caught:
        traced(Step(agent, torch.zeros(EXAMPLES, 5)))
    assert "\n" not in str(caught.value)
