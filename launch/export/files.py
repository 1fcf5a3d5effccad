"""An agent's step as the bytes of a file: an ONNX model, or an archive of torch.export."""

import contextlib
import importlib.util
import io
import logging
import warnings
from typing import Any

import torch

from ...base.errors import EngramError
from .graph import Step


def torch_archive(program: torch.export.ExportedProgram) -> bytes:
    """A traced step as an archive for `torch.export.load`: one dict of tensors in, one out."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def onnx_model(step: Step, program: torch.export.ExportedProgram, facts: dict[str, str]) -> bytes:
    """The step, traced as `program`, as an ONNX model with named inputs and outputs and with `facts` as its metadata.

    Raises:
        EngramError: the packages that write ONNX are missing.
        ValueError: ONNX lacks one of the operations; one line.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise EngramError(f"--onnx: there is no package {missing[0]}; pip install 'engram-rl[export]'")
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            made: Any = torch.onnx.export(
                program,
                (),
                input_names=list(step.example),
                output_names=step.outputs,
                dynamic_shapes=({name: {0: "batch"} for name in step.example},),
                dynamo=True,
                verbose=False,
            )
    except Exception as problem:  # the exporter wraps every exception
        reason = " ".join(str(problem.__cause__ or problem).split())[:300]
        raise ValueError(f"no ONNX model of {type(step.agent.core).__name__}: {reason}") from problem
    finally:
        log.setLevel(level)
    made.model.metadata_props.update(facts)
    return made.model_proto.SerializeToString()
