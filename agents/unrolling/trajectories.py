"""Exact use of library loops without resets: over trajectories that are split where an episode begins.

Every interval between two resets is a separate sequence for the library, packed by length as in
`torch.nn.utils.rnn.PackedSequence`: at each step the sequences that still run, longest first.

Shapes: T steps, B environments, S trajectories, R = T * B inputs.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Fused = Callable[[Tensor, Tensor, list[Tensor]], tuple[Tensor, ...]]
"""Packed rows [R, D], running sequences per step, first states [1, S, H] -> rows [R, H], last states [1, S, H]."""


def over_trajectories(
    fused: Fused, inputs: Tensor, reset: Tensor, state: Sequence[Tensor], bptt_length: int | None
) -> tuple[Tensor, list[Tensor]]:
    """Outputs [T, B, H] and last states [B, H] of inputs [T, B, D]; the initial state is zero.

    `reset` (bool [T, B]) and `bptt_length` are as in `Core.unroll`.
    """
    length = len(inputs) if bptt_length is None else bptt_length
    outputs: list[Tensor] = []
    leaves = list(state)
    for number, (x, starts) in enumerate(zip(inputs.split(length), reset.split(length), strict=True)):
        if number > 0:
            leaves = [leaf.detach() for leaf in leaves]
        y, leaves = _one_piece(fused, x, starts, leaves)
        outputs.append(y)
    return torch.cat(outputs), leaves


def _one_piece(fused: Fused, inputs: Tensor, reset: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    steps, batch = reset.shape
    begins = reset.clone()
    begins[0] = True
    # Beginnings of trajectories as b * T + t, in order of environments.
    place = begins.t().flatten().nonzero().squeeze(1)
    lengths = torch.cat([place[1:], place.new_tensor([steps * batch])]) - place
    lengths, order = lengths.sort(descending=True, stable=True)
    b, t = place[order] // steps, place[order] % steps

    time = torch.arange(int(lengths[0]), device=place.device).unsqueeze(1)
    running = time < lengths  # [longest, S]
    rows = ((t + time) * batch + b)[running]  # indices of the R inputs in packed order
    fresh = reset[t, b].unsqueeze(1)
    first = [torch.where(fresh, 0.0, leaf.index_select(0, b)).unsqueeze(0) for leaf in state]
    packed, *last = fused(inputs.flatten(0, 1).index_select(0, rows), running.sum(1).cpu(), first)

    outputs = packed.index_select(0, rows.argsort()).unflatten(0, (steps, batch))
    ends = (t + lengths == steps).nonzero().squeeze(1)  # trajectories that continue at the end, one for each b
    ends = ends[b[ends].argsort()]
    return outputs, [leaf[0].index_select(0, ends) for leaf in last]
