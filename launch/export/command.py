"""`rl-export`: one step of a trained agent as an ONNX model or an archive of torch.export."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Column, Table

from ...agents.process import prepare_process
from ...agents.values import map_leaves
from ...base.errors import file_errors, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import setting
from ..config.command_line import make_console, parse
from ..runs.trained import AgentChoice, make_actor, open_run
from .graph import EXAMPLES, Step, onnx_model, traced

_HELP = """Export a trained agent: one greedy step from named tensors to named tensors, recurrent state included, as an
ONNX model or an archive of torch.export. Neither needs engram to run."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig(AgentChoice):
    """The agent to export, and the output files."""

    onnx: str = setting("", file="")
    """File for an ONNX model."""
    torch_export: str = setting("", file="")
    """File for an archive that torch.export.load reads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not (self.onnx or self.torch_export), "no file is given; expected: onnx, torch-export or both")


def main(arguments: Sequence[str]) -> int:
    """Export according to the arguments; return the exit code."""
    config = parse(ExportConfig, arguments, "rl-export", _HELP)
    prepare_process(1)
    console = make_console()
    trained = open_run(config.run, config.checkpoint)
    factory, weights = trained.factory(config.env_args), trained.weights(config.member)
    with closing(make_actor(factory, weights, seed=0, greedy=True, num_envs=EXAMPLES, unroll_length=1)) as actor:
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
            with file_errors(f"--torch-export: cannot write {config.torch_export}"):
                torch.export.save(program, config.torch_export)
    files = " and ".join(filter(None, (config.onnx, config.torch_export)))
    console.print(described(step, f"{factory.env} with {trained.config.agent.core}: wrote {files}"))
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
