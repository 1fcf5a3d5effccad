"""Settings of a process that runs networks: permanent in a command, temporary in a user's program."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from ..base.processes import keep_freed_memory, use_huge_pages
from .cores.fast.blas import one_thread_per_product
from .threads import num_threads, use_threads


def prepare_process(threads: int) -> None:
    """Use `threads` CPU threads per operation, keep freed memory, in large pages. For command lines only.

    A GPU computes exact float32, so acting does not depend on the settings of a learner's thread.
    """
    torch.set_num_threads(threads)
    if torch.cuda.device_count():
        round_factors(False)
    one_thread_per_product()
    if keep_freed_memory():
        use_huge_pages()


@contextmanager
def settings_of_a_command() -> Generator[None]:
    """Use a command's threads and precision and preserve torch's random state until the end of the `with` statement.

    Irreversible settings of the C library's memory are not changed.
    """
    threads, learner_threads = torch.get_num_threads(), num_threads()
    with one_thread_per_product(), torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.set_num_threads(1)
        restore = round_factors(False) if torch.cuda.device_count() else None
        try:
            yield
        finally:
            if restore is not None:
                restore()
            use_threads(learner_threads)
            torch.set_num_threads(threads)  # after the learner's threads, which also set it


def round_factors(rounded: bool) -> Callable[[], None]:
    """Round the factors of a GPU's matrix multiplications and convolutions to 10 bits (TF32), or do not.

    By default cuDNN rounds the factors of float32 convolutions. The flags belong to the process; returns a function
    that restores them.
    """
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):  # since torch 2.9, where `allow_tf32` raises after this flag has been set
        places, name = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn), "fp32_precision"
        value: Any = "tf32" if rounded else "ieee"
    else:
        places, name, value = (backends.cuda.matmul, backends.cudnn), "allow_tf32", rounded
    before = [getattr(place, name) for place in places]

    def restore() -> None:
        for place, old in zip(places, before, strict=True):
            setattr(place, name, old)

    for place in places:
        setattr(place, name, value)
    return restore
