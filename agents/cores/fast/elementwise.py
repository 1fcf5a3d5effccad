"""Parts of compiled loops over time on a CPU: operations on rows of values, and where gradients end.

Normalized values are the values of a LayerNorm before gain and offset. Shapes: T steps, B environments.
"""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....base.compiled import compiled

Array: TypeAlias = NDArray[Any]

EPS = 1e-5  # Epsilon of `torch.nn.LayerNorm`

part = compiled("reassoc", "nsz", inline=True)  # Decorator of parts that are inlined into their caller


@part
def copy(x: Array, out: Array) -> None:
    """out [F] = x. A slice assignment takes several times as long to compile, since it checks shapes and overlaps."""
    for c in range(len(out)):
        out[c] = x[c]


@part
def copy_rows(x: Array, out: Array) -> None:
    for r in range(len(out)):
        for c in range(out.shape[1]):
            out[r, c] = x[r, c]


@part
def add(total: Array, x: Array) -> None:
    for c in range(len(total)):
        total[c] += x[c]


@part
def add_scaled(total: Array, weight: float, x: Array) -> None:
    for c in range(len(total)):
        total[c] += weight * x[c]


@part
def dot(x: Array, y: Array) -> float:
    total = x.dtype.type(0)
    for c in range(len(x)):
        total += x[c] * y[c]
    return total


@part
def tanh(x: Array, out: Array) -> None:
    """out [F] = tanh(x), accurate to 4e-7 in float32; both may be the same array."""
    if x.itemsize > 4:
        for c in range(len(x)):
            out[c] = math.tanh(x[c])
        return
    # x p(x^2) / q(x^2) fitted to 2e-8 (relative) up to 8.5, beyond which float32 rounds tanh to 1.
    one = np.float32(1)
    limit = np.float32(8.5)
    for c in range(len(x)):
        v = x[c]
        v = limit if v > limit else v
        v = -limit if v < -limit else v
        s = v * v
        p = np.float32(2.12507184187416e-05) + np.float32(1.4268718651067047e-08) * s
        p = one + s * (np.float32(0.13413232564926147) + s * (np.float32(0.0035340087488293648) + s * p))
        q = np.float32(0.0003348833997733891) + np.float32(8.144926937347918e-07) * s
        q = one + s * (np.float32(0.4674655497074127) + s * (np.float32(0.026022683829069138) + s * q))
        y = v * p / q  # rounding may exceed 1 by one unit in the last place
        y = one if y > one else y
        out[c] = -one if y < -one else y


@part
def sigmoid(x: Array) -> None:
    """x <- sigmoid(x) = (1 + tanh(x / 2)) / 2, since a loop over this tanh needs no call per value."""
    half = x.dtype.type(0.5)
    for c in range(len(x)):
        x[c] = half * x[c]
    tanh(x, x)
    for c in range(len(x)):
        x[c] = half + half * x[c]


@part
def add_through_tanh(total: Array, grad: Array, squashed: Array) -> None:
    """total [F] += grad (1 - squashed^2): the gradient through squashed = tanh(x)."""
    one = grad.dtype.type(1)
    for c in range(len(total)):
        total[c] += grad[c] * (one - squashed[c] * squashed[c])


@part
def rectify(x: Array, bias: Array) -> None:
    """x [F] <- relu(x + bias)."""
    zero = x.dtype.type(0)
    for c in range(len(x)):
        y = x[c] + bias[c]
        x[c] = zero if y <= zero else y  # nan stays nan


@part
def through_relu(grad: Array, y: Array, out: Array) -> None:
    """out [F] = grad where y = relu(x) is positive or nan, else 0."""
    zero = grad.dtype.type(0)
    for c in range(len(out)):
        out[c] = zero if y[c] <= zero else grad[c]


@part
def normalize(x: Array) -> float:
    """x <- (x - mean) / standard deviation; returns 1 / standard deviation."""
    one = x.dtype.type(1)
    width = x.dtype.type(len(x))
    total = one - one
    for c in range(len(x)):
        total += x[c]
    mean = total / width
    total = one - one
    for c in range(len(x)):
        total += (x[c] - mean) * (x[c] - mean)
    rstd = one / np.sqrt(total / width + x.dtype.type(EPS))
    for c in range(len(x)):
        x[c] = (x[c] - mean) * rstd
    return rstd


@part
def scale(normal: Array, gain: Array, offset: Array, out: Array) -> None:
    for c in range(len(out)):
        out[c] = normal[c] * gain[c] + offset[c]


@part
def normalize_backward(
    grad: Array, normal: Array, rstd: float, gain: Array, out: Array, grad_gain: Array, grad_offset: Array
) -> None:
    """The adjoint of `normalize` and `scale`: gradient of the result [F] -> of x in `out`; adds to the other two."""
    width = grad.dtype.type(len(grad))
    mean = width - width
    slope = width - width
    for c in range(len(grad)):
        mean += grad[c] * gain[c]
        slope += grad[c] * gain[c] * normal[c]
    mean /= width
    slope /= width
    for c in range(len(grad)):
        out[c] = rstd * (grad[c] * gain[c] - mean - slope * normal[c])
    for c in range(len(grad)):
        grad_gain[c] += grad[c] * normal[c]
        grad_offset[c] += grad[c]


@part
def gradient_ends(reset: Array, cut: int, t: int, b: int) -> bool:
    """Whether no gradient of environment b passes from step t to the state before step t: where an episode begins
    (`reset` bool [T, B]), and before every `cut`-th step unless `cut` is 0."""
    return reset[t, b] or (cut > 0 and t > 0 and t % cut == 0)


@part
def mix(memory: Array, candidate: Array, gates: Array, out: Array) -> None:
    """out [F] = i candidate + f memory; the gates [2 G] are i and f, G = 1 or F."""
    half = len(gates) // 2
    if half == 1:
        i, f = gates[0], gates[1]
        for c in range(len(out)):
            out[c] = i * candidate[c] + f * memory[c]
    else:
        for c in range(len(out)):
            out[c] = gates[c] * candidate[c] + gates[half + c] * memory[c]


@part
def mix_backward(
    grad: Array, memory: Array, candidate: Array, gates: Array, grad_memory: Array, grad_candidate: Array, out: Array
) -> None:
    """The adjoint of `mix` with candidate = tanh(x) and gates = sigmoid(y): gradients of memory, x and, in `out`, y."""
    half = len(gates) // 2
    one = grad.dtype.type(1)
    if half == 1:
        i, f = gates[0], gates[1]
        for c in range(len(grad)):
            grad_memory[c] = f * grad[c]
            grad_candidate[c] = i * grad[c] * (one - candidate[c] * candidate[c])
        out[0] = dot(grad, candidate) * i * (one - i)
        out[1] = dot(grad, memory) * f * (one - f)
    else:
        to_i, to_f = out[:half], out[half:]
        for c in range(len(grad)):
            i, f = gates[c], gates[half + c]
            grad_memory[c] = f * grad[c]
            grad_candidate[c] = i * grad[c] * (one - candidate[c] * candidate[c])
            to_i[c] = grad[c] * candidate[c] * i * (one - i)
            to_f[c] = grad[c] * memory[c] * f * (one - f)
