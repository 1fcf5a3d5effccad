"""Multiplications of one environment's memory and a few keys, too small for a BLAS routine.

One pass over M [d, d] serves three keys; x and y are [R, d].
"""

from ..elementwise import Array, add_scaled, copy_rows, dot, part


@part
def copy_memory(x: Array, out: Array) -> None:
    """out [3, d, d] = x."""
    for level in range(len(out)):
        copy_rows(x[level], out[level])


@part
def times(matrix: Array, x: Array, out: Array) -> None:
    """out[r] = M x[r]."""
    zero = x.dtype.type(0)
    by_three = len(x) - len(x) % 3
    for i in range(len(matrix)):
        w = matrix[i]
        for r in range(0, by_three, 3):
            a, b, c = x[r], x[r + 1], x[r + 2]
            sum_a, sum_b, sum_c = zero, zero, zero
            for j in range(len(w)):
                sum_a += w[j] * a[j]
                sum_b += w[j] * b[j]
                sum_c += w[j] * c[j]
            out[r, i], out[r + 1, i], out[r + 2, i] = sum_a, sum_b, sum_c
        for r in range(by_three, len(x)):
            out[r, i] = dot(w, x[r])


@part
def turned_times(matrix: Array, y: Array, out: Array) -> None:
    """out[r] = M^T y[r]."""
    size = len(matrix)
    by_four = size - size % 4
    for r in range(len(y)):
        total, g = out[r], y[r]
        total[:] = 0
        for i in range(0, by_four, 4):
            a, b, c, d = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
            p, q, u, v = g[i], g[i + 1], g[i + 2], g[i + 3]
            for j in range(size):
                total[j] += p * a[j] + q * b[j] + u * c[j] + v * d[j]
        for i in range(by_four, size):
            add_scaled(total, g[i], matrix[i])


@part
def add_outer(matrix: Array, factor: float, y: Array, x: Array) -> None:
    """M += factor sum over r of y[r] x[r]^T."""
    by_three = len(x) - len(x) % 3
    for i in range(len(matrix)):
        w = matrix[i]
        for r in range(0, by_three, 3):
            p, q, s = factor * y[r, i], factor * y[r + 1, i], factor * y[r + 2, i]
            a, b, c = x[r], x[r + 1], x[r + 2]
            for j in range(len(w)):
                w[j] += p * a[j] + q * b[j] + s * c[j]
        for r in range(by_three, len(x)):
            add_scaled(w, factor * y[r, i], x[r])
