"""Settings of a process that runs networks on a CPU: permanent in a command, temporary in a user's program."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from ..base.processes import keep_freed_memory, use_huge_pages
from .cores.fast.blas import one_thread_per_product
from .threads import num_threads, use_threads


def prepare_process(threads: int) -> None:
    """Use `threads` CPU threads per operation, keep freed memory, in large pages. For command lines only."""
    torch.set_num_threads(threads)
    one_thread_per_product()
    if keep_freed_memory():
        use_huge_pages()


@contextmanager
def settings_of_a_command() -> Generator[None]:
    """Use a command's threads and preserve torch's random state until the end of the `with` statement. Irreversible
    settings of the C library's memory are not changed."""
    threads, learner_threads = torch.get_num_threads(), num_threads()
    with one_thread_per_product(), torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            use_threads(learner_threads)
            torch.set_num_threads(threads)  # after the learner's threads, which also set it
