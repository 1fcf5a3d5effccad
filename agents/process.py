"""Settings of a process that runs networks on a CPU, made before it starts."""

import torch

from ..base.processes import keep_freed_memory, use_huge_pages
from .cores.fast.blas import one_thread_per_product


def prepare_process(threads: int) -> None:
    """Use `threads` CPU threads per operation, keep freed memory, in large pages. For command lines only."""
    torch.set_num_threads(threads)
    one_thread_per_product()
    if keep_freed_memory():
        use_huge_pages()
