"""Memory of a supervised run, compared with the memory that there is before anything of its size is made."""

from typing import Any

from ...agents.sizes import check_fits, training_bytes, without_memory
from ...base.memory import Memory, memory
from ...envs.tasks.task import Task
from .config import SupervisedConfig
from .model import SequenceModel


def check_memory(
    task: Task, core: str, core_args: dict[str, Any], config: SupervisedConfig, available: Memory | None = None
) -> None:
    """Raise ValueError with the bytes that network or batch would take if they are more than this process may use.

    Args:
        task: one sequence of what is learnt.
        core: name of a core.
        core_args: options of the core.
        config: batch, optimiser and the network around the core.
        available: None for this process's limit.
    """
    available = available or memory()
    what = f"a network with core {core} {core_args}, embedding_size {config.embedding_size} and head_size "
    network = without_memory(lambda: SequenceModel(task, core, core_args, config), f"{what}{config.head_size}")
    if network is not None:
        check_fits("the network and its optimiser", 1, "networks", training_bytes(network), available)
    check_fits("a batch", config.batch_size, "sequences", sequence_bytes(task), available)


def sequence_bytes(task: Task) -> int:
    """Bytes of one sequence of a batch, as in `Batch`."""
    inputs = 8 if task.symbols else 4 * task.inputs
    return task.steps * (inputs + 8 * task.groups + 2)
