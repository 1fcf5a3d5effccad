"""Settings of a process that runs networks: permanent in a command, temporary in a user's program."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from numba.extending import get_cython_function_address
from threadpoolctl import threadpool_limits

from ..base.processes import keep_freed_memory, use_huge_pages
from .threads import num_threads, use_threads


def one_thread_per_product() -> threadpool_limits:
    """Limit SciPy's library to one thread in the whole process, since environments are divided among threads. The limit
    applies inside a `with` statement on the result, or permanently without one."""
    get_cython_function_address("scipy.linalg.cython_blas", "sgemm")  # loads it
    return threadpool_limits(1, "blas")


def prepare_process(threads: int) -> None:
    """Use `threads` CPU threads per operation and keep freed memory in large pages. For commands only. A GPU is set to
    exact float32, so acting does not depend on the settings of a learner's thread."""
    torch.set_num_threads(threads)
    if torch.cuda.device_count():
        round_factors(False)
    one_thread_per_product()
    if keep_freed_memory():
        use_huge_pages()


@contextmanager
def settings_of_a_command() -> Generator[None]:
    """Use a command's threads and precision inside the `with` statement, then restore them and torch's random state."""
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
    """Set whether GPUs round the factors of matrix multiplications and convolutions to 10 bits (TF32), as cuDNN does by
    default, in the whole process; return a function that restores the settings."""
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):  # since torch 2.9, where `allow_tf32` raises after this flag has been set
        owners, name = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn), "fp32_precision"
        value: Any = "tf32" if rounded else "ieee"
    else:
        owners, name, value = (backends.cuda.matmul, backends.cudnn), "allow_tf32", rounded
    before = [getattr(owner, name) for owner in owners]

    def restore() -> None:
        for owner, old in zip(owners, before, strict=True):
            setattr(owner, name, old)

    for owner in owners:
        setattr(owner, name, value)
    return restore
