"""Matrix multiplications inside compiled functions: calls of a BLAS library's `sgemm` and `dgemm`, and of oneDNN's
`brgemm`, which torch exports for its own kernels, for bfloat16 factors and float32 sums.

A loop over time that leaves the interpreter once, instead of twenty times per step, is faster, and threads can run
several such loops at once. The library is torch's if that is MKL and the CPU is Intel's, else SciPy's.

Sizes are passed in 64 bits with the upper half zero, so that a library with 32-bit sizes reads the same values
on every little-endian machine.
"""

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from ....base.compiled import compiled
from ....base.processes import on_intel
from .elementwise import Array

PLAIN, TRANSPOSED = ord("N"), ord("T")
TILE_CPU, WORD_CPU = "amx_bf16", "avx512_bf16"
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"


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


@functools.cache
def instructions() -> str:
    """Return the name of the CPU's bfloat16 instructions that oneDNN may use; "" if there are none."""
    file = Path("/proc/cpuinfo")
    if not file.exists() or any(name in os.environ for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")):
        return ""
    flags = file.read_text().partition("flags")[2].partition("\n")[0].split()
    return next((name for name in (TILE_CPU, WORD_CPU) if name in flags), "")


@functools.cache
def torch_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(next(Path(torch.__path__[0], "lib").glob("libtorch_cpu.*"))))


def release() -> None:
    """Free the tile registers, if any, after this thread's last multiplication."""
    if instructions() == TILE_CPU:
        getattr(torch_library(), _RELEASE)(ctypes.c_bool(True))


@intrinsic
def brgemm(context: Any, routine: Any, sizes: Any, adds: Any, a: Any, b: Any, c: Any) -> Any:
    """C [M, N] = A [M, K] B, or C += A B with `adds`; `sizes` are M, N, K and the leading dimensions of A, B and C."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        routine, sizes, adds, *matrices = arguments
        long, flag, pointer = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
        dimensions = cgutils.unpack_tuple(builder, sizes)
        a, b, c = (builder.inttoptr(matrix, pointer) for matrix in matrices)
        function = ir.FunctionType(ir.VoidType(), [long] * 6 + [flag, pointer, pointer, pointer, flag])
        call = builder.inttoptr(routine, function.as_pointer())
        builder.call(call, [*dimensions, builder.zext(adds, flag), a, b, c, flag(1)])
        return context.get_dummy_value()

    intp = types.intp
    return types.void(intp, types.UniTuple(intp, 6), types.boolean, intp, intp, intp), generate


@compiled(inline=True)
def to_bfloat16(x: float) -> int:
    """Round to nearest, ties to even: the upper half of a float32's bits, as uint16."""
    bits = np.float32(x).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + odd + np.uint32(0x7FFF)) >> np.uint32(16))  # pyright: ignore


@compiled(inline=True)
def round_row(x: Array, out: Array) -> None:
    for c in range(len(x)):
        out[c] = to_bfloat16(x[c])


@compiled(inline=True)
def multiply_rounded(routine: int, x: Array, words: Array, out: Array) -> None:
    """out [R, J] = x [R, I] times packed words [I / 2, J], for few rows; all contiguous."""
    rows, width, size = len(x), 2 * len(words), x.shape[1]
    rounded = np.empty((rows, width), np.uint16)
    for r in range(rows):
        round_row(x[r], rounded[r])
        rounded[r, size:] = 0
    sizes = rows, out.shape[1], width, width, out.shape[1], out.shape[1]
    brgemm(routine, sizes, False, rounded.ctypes.data, words.ctypes.data, out.ctypes.data)  # pyright: ignore
