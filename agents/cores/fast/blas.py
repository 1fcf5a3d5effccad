"""Matrix multiplications inside compiled functions: calls of a BLAS library's `sgemm` and `dgemm`.

A loop over time that leaves the interpreter once, instead of twenty times per step, is faster, and threads can run
several such loops at once. The library is torch's if that is MKL and the CPU is Intel's, else SciPy's.

Sizes are passed in 64 bits with the upper half zero, so that a library with 32-bit sizes reads the same values
on every little-endian machine.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic
from threadpoolctl import threadpool_limits

from ....base.compiled import compiled
from ....base.processes import on_intel
from ...bf16 import multiply_rounded
from .elementwise import Array

PLAIN, TRANSPOSED = ord("N"), ord("T")


@functools.cache
def gemm(dtype: torch.dtype) -> int:
    """Return the address of a routine for float32 or float64 matrices, for `multiply`."""
    name = "sgemm" if dtype == torch.float32 else "dgemm"
    if on_intel() and torch.backends.mkl.is_available():
        for file in Path(torch.__path__[0], "lib").glob("*torch_cpu.*"):
            routine = getattr(ctypes.CDLL(str(file)), f"{name}_", None)
            if routine is not None:
                return ctypes.cast(routine, ctypes.c_void_p).value or 0
    return get_cython_function_address("scipy.linalg.cython_blas", name)


def one_thread_per_product() -> threadpool_limits:
    """Limit SciPy's library to one thread in the whole process, since environments are divided among threads. The limit
    applies inside a `with` statement on the result, or permanently without one."""
    get_cython_function_address("scipy.linalg.cython_blas", "sgemm")  # loads it
    return threadpool_limits(1, "blas")


@compiled(inline=True)
def multiply(routine: int, x: Array, weight: Array, transpose: bool, out: Array) -> None:
    """out [R, J] = x [R, I] weight [I, J]; with `transpose`, weight is [J, I]. All are contiguous and of the type of
    `routine`. A routine below 0 is the negative address of the bfloat16 routine, for which the weight is packed."""
    if routine < 0:
        multiply_rounded(-routine, x, weight, out)
        return
    # BLAS is column-major: it reads these matrices transposed, so the factors are swapped.
    letter = TRANSPOSED if transpose else PLAIN
    sizes = out.shape[1], len(x), x.shape[1], weight.shape[1]
    _call(routine, letter, sizes, weight.ctypes.data, x.ctypes.data, out.ctypes.data, out[0, 0])  # pyright: ignore


@intrinsic
def _call(context: Any, routine: Any, letter: Any, sizes: Any, a: Any, b: Any, c: Any, like: Any) -> Any:
    """gemm(letter, "N", m, n, k, 1, a, width, b, k, 0, c, m); sizes m, n, k, width. `like` determines the type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        routine, letter, sizes, *matrices, like = arguments
        byte, half, integer = ir.IntType(8), ir.IntType(32), ir.IntType(64)

        def store(value: Any) -> Any:
            return builder.bitcast(cgutils.alloca_once_value(builder, value), byte.as_pointer())

        m, n, k, width = (
            store(builder.zext(builder.trunc(size, half), integer)) for size in cgutils.unpack_tuple(builder, sizes)
        )
        one, zero = (store(ir.Constant(like.type, value)) for value in (1.0, 0.0))
        a, b, c = (builder.inttoptr(matrix, byte.as_pointer()) for matrix in matrices)
        letters = store(builder.trunc(letter, byte)), store(ir.Constant(byte, PLAIN))
        pointers = [*letters, m, n, k, one, a, width, b, k, zero, c, m]
        function = ir.FunctionType(ir.VoidType(), [byte.as_pointer()] * len(pointers))
        builder.call(builder.inttoptr(routine, function.as_pointer()), pointers)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(intp, intp, types.UniTuple(intp, 4), intp, intp, intp, like), generate
