"""Matrix memories with a decay per element over all steps of an unroll, exact at resets.

    M_t = f(b_t a_t^T) * M_{t-1} + w_t u_t^T,   y_t = q_t^T M_t         M_{t-1} = 0 where an episode begins

On a CPU compiled code does it step by step and neither stores M nor f for all steps (cores/fast/hadamard). Elsewhere
both are computed for all steps, and M by a scan.

Shapes: T steps, B environments, G groups (heads), J rows, I columns.
"""

from torch import Tensor

from ..cores.fast.hadamard.kernels import COMPLEMENT, EXP, TANH
from ..cores.fast.hadamard.unroll import remember_compiled
from ..cores.fast.routes import suits
from .scan import scan_blocks

FORMS = {"exp": EXP, "tanh": TANH, "complement": COMPLEMENT}


def remember(
    form: str,
    decay: tuple[Tensor, Tensor],
    write: tuple[Tensor, Tensor],
    query: Tensor,
    reset: Tensor,
    start: Tensor,
    bptt_length: int | None = None,
    reads: int = 1,
) -> tuple[Tensor, Tensor]:
    """y [T, B, G, R, I] of all steps and the last memory [B, G, J, I].

    Args:
        form: f(P), "exp": exp(-P), P >= 0; "tanh": 1 + tanh(P); "complement": 1 - P.
        decay: a [T, B, G, I], and b [T, B, G, J], or [G, J, I] if it is constant and P = b * a^T.
        write: u [T, B, G, I], w [T, B, G, J].
        query: q [T, B, G, J].
        reset: bool [T, B]; where set, the memory before the step is zero, by selection.
        start: the memory before step 0 [B, G, J, I].
        bptt_length: no gradient passes from step t to step t - 1 where t is a multiple of it.
        reads: R; result r is read from rows r J / R to (r + 1) J / R.
    """
    (a, b), (u, w) = decay, write
    if suits(u):
        constant = b.dim() == 3
        none = u.new_empty(*u.shape[:3], 0) if constant else u.new_empty(u.shape[2], 0, u.shape[3])
        b, rates = (none, b) if constant else (b, none)
        return remember_compiled(FORMS[form], (a, b, rates, u, w, query), reads, reset, start, bptt_length)
    rows = a.unsqueeze(-2) * (b if b.dim() == 3 else b.unsqueeze(-1))
    decays = (-rows).exp() if form == "exp" else 1 + rows.tanh() if form == "tanh" else 1 - rows
    memories = scan_blocks(decays, w.unsqueeze(-1) * u.unsqueeze(-2), reset, start, bptt_length)
    read = (query.unsqueeze(-1) * memories).unflatten(3, (reads, -1)).sum(4)
    return read, memories[-1]
