"""`rl-export`: one step of a trained agent as an ONNX model or an archive of torch.export."""

import contextlib
import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Column, Table
from torch import Tensor, nn
from torch.utils import _pytree as trees

from ...agents.agent import Agent, AgentState
from ...agents.cores.core import state_leaves
from ...agents.process import prepare_process
from ...agents.specs import best
from ...agents.values import EnvOutput, map_leaves
from ...base.errors import file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import setting
from ..config.command_line import make_console, parse
from ..runs.trained import AgentChoice, make_actor, open_run

EXAMPLES = 2  # Number of environments in the traced call: torch.export treats an axis of length 1 as fixed
Named = dict[str, Tensor]
_HELP = """Export a trained agent: one greedy step from named tensors to named tensors, recurrent state included, as an
ONNX model or an archive of torch.export. Neither needs engram to run."""


class Step(nn.Module):
    """One greedy step of `agent`, from tensors by name to tensors by name, for any number B of environments.

    docs/how-to/export.md lists inputs and outputs. Where `reset` (bool [B]) is set, the step starts from the initial
    state. `logits` are -inf where masked; for a Box they are K means, then K log deviations. Weights and moments become
    constants. `observation` is an example [EXAMPLES, ...]; `masked`: whether the environment has action masks.
    """

    def __init__(self, agent: Agent, observation: Any, masked: bool = False) -> None:
        super().__init__()
        self.agent = copy.deepcopy(agent).requires_grad_(False)
        self.agent.prediction = None  # prediction is a loss, which acting does not use
        state = agent.initial_state(EXAMPLES)
        # Clones: the leaves of an initial state may be views of one tensor, which torch.export treats as one input.
        self._core = {name: leaf.clone() for name, leaf in leaves_by_name(state.core, "state").items()}
        self._observation = leaves_by_name(observation, "observation")
        self._forms = trees.tree_structure(observation), trees.tree_structure(state.core)
        self.example: Named = dict(self._observation)  # Inputs by name
        if agent.config.previous_action:
            self.example["previous_action"] = state.previous_action
        if agent.config.previous_reward:
            self.example["previous_reward"] = torch.zeros(EXAMPLES)
        if agent.config.time_horizon:
            self.example["elapsed"] = state.elapsed
        if masked:
            self.example["action_mask"] = torch.ones(EXAMPLES, agent.action_spec.num_outputs, dtype=torch.bool)
        self.example["reset"] = torch.ones_like(state.over)
        self.example |= self._core
        self.outputs = ["action", "logits", "value", *(f"next_{name}" for name in self._core)]

    def forward(self, inputs: Named) -> Named:
        reset = inputs["reset"]
        observation, core = (
            trees.tree_unflatten([inputs[name] for name in names], form)
            for names, form in zip((self._observation, self._core), self._forms, strict=True)
        )
        reward, none = torch.where(reset, 0.0, inputs.get("previous_reward", reset.float())), torch.zeros_like(reset)
        first = self.agent.initial_state(reset.shape[0])
        previous = inputs.get("previous_action", first.previous_action)
        state = AgentState(core, previous, inputs.get("elapsed", first.elapsed), reset)
        env = EnvOutput(observation, reward, none, none, inputs.get("action_mask"))
        logits, value, after = self.agent.respond(env, state)
        action = best(self.agent.action_spec, logits)
        return dict(zip(self.outputs, (action, logits, value, *state_leaves(after.core)), strict=True))


def traced(step: Step) -> torch.export.ExportedProgram:
    """Trace the step for any number of environments. Raises ValueError naming the core and the torso."""
    batch = torch.export.Dim("batch")
    shapes = {name: {0: batch} for name in step.example}
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            return torch.export.export(step.eval(), (step.example,), dynamic_shapes=(shapes,), strict=False)
    except Exception as problem:  # a tracer may raise anything on user code
        names = f"{type(step.agent.core).__name__} with {type(step.agent.torso).__name__}"
        raise ValueError(f"torch.export cannot trace {names}: {_first_line(problem)}") from problem


def leaves_by_name(tree: Any, name: str) -> Named:
    """Return the tensors of an observation or a recurrent state by name, such as `state.controller.h`."""
    leaves: Any = trees.tree_flatten_with_path(tree)[0]
    return {
        ".".join([name, *(key.name if isinstance(key, trees.GetAttrKey) else str(key.key) for key in path)]): leaf
        for path, leaf in leaves
    }


def onnx_model(step: Step, program: torch.export.ExportedProgram, facts: dict[str, str]) -> bytes:
    """Return the step, traced as `program`, as an ONNX model with `facts` as metadata. Raises ValueError."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    refuse(missing, f"--onnx needs the package {''.join(missing[:1])}: pip install 'engram-rl[export]'")
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            names: Any = {"input_names": list(step.example), "output_names": step.outputs}
            shapes = ({name: {0: "batch"} for name in step.example},)
            exported: Any = torch.onnx.export(program, (), **names, dynamic_shapes=shapes, dynamo=True, verbose=False)
    except Exception as problem:  # the exporter wraps every exception
        core, reason = type(step.agent.core).__name__, _first_line(problem.__cause__ or problem)
        raise ValueError(f"cannot make an ONNX model of {core}: {reason}") from problem
    finally:
        log.setLevel(level)
    exported.model.metadata_props.update(facts)
    return exported.model_proto.SerializeToString()


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)


@dataclass(frozen=True, kw_only=True)
class ExportConfig(AgentChoice):
    onnx: str = setting("", file="")
    """File for an ONNX model."""
    torch_export: str = setting("", file="")
    """File for an archive that torch.export.load reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not (self.onnx or self.torch_export), "no file is given; expected: onnx, torch-export or both")


def main(arguments: Sequence[str]) -> int:
    config = parse(ExportConfig, arguments, "rl-export", _HELP)
    prepare_process(1)
    trained = open_run(config.run, config.checkpoint)
    factory, weights = trained.factory(config.env_args), trained.weights(config.member)
    with closing(make_actor(factory, weights, seed=0, greedy=True, num_envs=EXAMPLES)) as actor:
        observation = map_leaves(torch.from_numpy, actor.batch.new_observation())
        step = Step(actor.agent, observation, masked=actor.batch.action_mask is not None)
    facts = {"env": factory.env, "core": trained.config.agent.core, "producer": "engram"}
    with user_errors():
        program = traced(step)
        if config.onnx:
            model = onnx_model(step, program, facts)
            with file_errors(f"--onnx: cannot write {config.onnx}"):
                replace_file(Path(config.onnx), model)
        if config.torch_export:
            archive = io.BytesIO()  # torch aborts this process if it cannot write to a file
            torch.export.save(program, archive)
            with file_errors(f"--torch-export: cannot write {config.torch_export}"):
                replace_file(Path(config.torch_export), archive.getvalue())
    files = " and ".join(filter(None, (config.onnx, config.torch_export)))
    make_console().print(described(step, f"{factory.env} with {trained.config.agent.core}: wrote {files}"))
    return 0


def described(step: Step, title: str) -> Table:
    """Tabulate inputs and outputs with dtypes and shapes; B is the number of environments."""
    columns = (Column(name, no_wrap=True) for name in ("", "name", "dtype", "shape"))
    table = Table(*columns, title=title, title_justify="left")
    with torch.inference_mode():
        outputs = step(step.example)
    for kind, tensors in (("input", step.example), ("output", outputs)):
        for name, tensor in tensors.items():
            shape = ", ".join(["B", *map(str, tensor.shape[1:])])
            table.add_row(kind, name, str(tensor.dtype).removeprefix("torch."), f"[{shape}]")
        table.add_section()
    return table
