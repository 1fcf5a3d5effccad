"""The LSTM's cell and its gradient, for one environment: a part of compiled loops. Shapes: H cells."""

from ..elementwise import Array, part, sigmoid, tanh


@part
def cell(gates: Array, c: Array, squashed: Array, new_c: Array, new_h: Array) -> None:
    """c' = sigmoid(f) * c + sigmoid(i) * tanh(g),  h' = sigmoid(o) * tanh(c').

    gates [4 H] are i, f, g, o, and are squashed here; `squashed` [H] becomes tanh(c').
    """
    size = len(c)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]
    sigmoid(gates[: 2 * size])
    tanh(g, g)
    sigmoid(o)
    for k in range(size):
        new_c[k] = f[k] * c[k] + i[k] * g[k]
    tanh(new_c, squashed)
    for k in range(size):
        new_h[k] = o[k] * squashed[k]


@part
def cell_backward(gates: Array, c: Array, squashed: Array, to_h: Array, to_gates: Array, to_c: Array) -> None:
    """Gradients of h' and c' [H] -> of i, f, g, o [4 H] before squashing, and of c in `to_c`."""
    size = len(c)
    one = to_h.dtype.type(1)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]
    to_i, to_f = to_gates[:size], to_gates[size : 2 * size]
    to_g, to_o = to_gates[2 * size : 3 * size], to_gates[3 * size :]
    for k in range(size):
        from_c = to_c[k] + to_h[k] * o[k] * (one - squashed[k] * squashed[k])
        to_i[k] = from_c * g[k] * i[k] * (one - i[k])
        to_f[k] = from_c * c[k] * f[k] * (one - f[k])
        to_g[k] = from_c * i[k] * (one - g[k] * g[k])
        to_o[k] = to_h[k] * squashed[k] * o[k] * (one - o[k])
        to_c[k] = from_c * f[k]
