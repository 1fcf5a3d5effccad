"""Every other core at the same work: what a core does while its neighbours are busy too.

Cores share caches, memory and often power, so that two of them do less than twice what one does alone. The parts of
training, measured between such neighbours, say what the machine can do with all of its cores.
"""

import multiprocessing
import os
from multiprocessing.synchronize import Event

import torch

from ...agents.process import prepare_process
from ...base.processes import num_cores
from ..metrics.speed import open_parts
from ..run.config import RunConfig

START_SECONDS = 120.0
STOP_SECONDS = 5.0
"""In which a neighbor must have closed its environments."""


class BusyCores:
    """A context manager: within it, all cores but one do the parts of training over and over."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ready = [spawn.Event() for _ in range(num_cores() - 1)]
        self._over = spawn.Event()
        self.processes = [
            spawn.Process(target=_work, args=(config, device, os.getpid(), ready, self._over), daemon=True)
            for ready in self._ready
        ]

    def __enter__(self) -> "BusyCores":
        for process in self.processes:
            process.start()
        for ready in self._ready:
            if not ready.wait(START_SECONDS):
                self.__exit__()
                raise RuntimeError(f"a neighbour process was not ready after {START_SECONDS:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for process in self.processes:
            process.join(STOP_SECONDS)
            process.kill()
            process.join()


def _work(config: RunConfig, device: torch.device, parent: int, ready: Event, over: Event) -> None:
    """All parts in the proportion of training, until that is over; a learner with its own device has no core."""
    prepare_process(1)
    with open_parts(config, torch.device("cpu")) as parts:
        if device.type != "cpu":
            del parts["learn"]
        done = {name: do() for name, do in parts.items()}
        ready.set()
        while os.getppid() == parent and not over.is_set():
            name = min(done, key=lambda each: done[each])
            done[name] += parts[name]()
