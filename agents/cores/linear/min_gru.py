"""minGRU (Feng et al. 2024, "Were RNNs all we needed?"): a gated unit whose gate does not depend on its state."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core import Axis
from ..parts.gates import gate_biases
from ..parts.stack import AtOnce, recur


class MinGRUState(NamedTuple):
    """h [B, num_layers, hidden_size]."""

    h: Tensor


class MinGRU(AtOnce):
    """minGRU: layers of gated units whose gates depend on the input only.

        z_t = sigmoid(W_z x_t + b_z)                 how much is new                       (section 3.1.2)
        n_t = W_h x_t + b_h                                                                (section 3.1.2)
        h_t = (1 - z_t) * h_{t-1} + z_t * n_t        the layer's output; h_{-1} = 0

    The output is h of the last layer. A layer's retention cannot depend on its own content, but that of a second layer
    can depend on the first layer's. Choices left open by the paper: two layers with nothing between them; both maps
    have biases; n is linear, since a scan without logarithms does not need the positive values of appendix B. A
    `memory_span` above 0 spreads the units' initial memory spans up to this many steps (`gate_biases`).
    """

    parts_of_state = (Axis("layer", "h", 1), Axis("unit", "h", 2))

    def __init__(self, input_size: int, hidden_size: int = 256, num_layers: int = 2, memory_span: int = 0) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        # Rows: z, then n.
        self.layers = nn.ModuleList(
            nn.Linear(hidden_size if index else input_size, 2 * hidden_size) for index in range(num_layers)
        )
        if memory_span:
            for layer in self.layers:
                assert isinstance(layer, nn.Linear)
                with torch.no_grad():
                    layer.bias[:hidden_size] = -gate_biases(hidden_size, memory_span)

    def initial_state(self, batch_size: int) -> MinGRUState:
        weight = self.layers[0].weight
        assert isinstance(weight, Tensor)
        return MinGRUState(weight.new_zeros(batch_size, len(self.layers), self.output_size))

    def _run(
        self, inputs: Tensor, state: MinGRUState, reset: Tensor | None = None, bptt_length: int | None = None
    ) -> tuple[Tensor, MinGRUState]:
        states: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            inputs, last = recur(*self.gates(layer(inputs)), state.h[:, index], reset, bptt_length)
            states.append(last)
        return inputs, MinGRUState(torch.stack(states, 1))

    def gates(self, mapped: Tensor) -> tuple[Tensor, Tensor]:
        """[..., 2 H] -> 1 - z and z * n, both [..., H]; 1 - sigmoid(v) = sigmoid(-v)."""
        v, n = mapped.chunk(2, -1)
        return torch.sigmoid(-v), torch.sigmoid(v) * n
