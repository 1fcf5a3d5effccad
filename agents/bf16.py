"""Matrix multiplications with bfloat16 factors and float32 sums, on CPUs with instructions for them.

The routine is oneDNN's `brgemm`, which torch exports for its own kernels. It is as fast for 8 rows as for thousands, so
the compiled loops of the cores use it at every step. Whether factors are rounded depends only on the weights, so actor
and learner compute the same function. The second factor is packed: [I, J] becomes 32-bit words [I / 2, J] of type
float32, each with two values of one column.
"""

import ctypes
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..base.compiled import compiled, enabled
from .cores.core import under_torch_func
from .threads import share

Array = NDArray[Any]

MIN_WEIGHTS, MIN_SIDE = 2**14, 16  # Smaller matrices stay float32: rounding and a call cost more than they save.
ROWS = 64  # Rows of a block: a block and its sums stay in the fastest caches.
CHUNK = 1024  # Terms of a sum that a block adds at once, a multiple of PAD
PAD = 32  # Row counts are rounded up to multiples of 8, term counts to multiples of this: each size needs compiling.
PIECES_FROM = 2**26  # Number of scalar multiplications from which threads share a matrix multiplication
TILE_CPU, WORD_CPU = "amx_bf16", "avx512_bf16"
_BRGEMM = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"


class _Local(threading.local):
    on = False


_local = _Local()
_cache: Any = WeakTensorKeyDictionary()  # Packed and stacked weights of acting networks: function -> versions, result


@contextmanager
def products(on: bool = True) -> Generator[None]:
    """Set whether this thread's large multiplications and their gradients round factors to bfloat16."""
    before, _local.on = _local.on, on
    try:
        yield
    finally:
        _local.on = before


def as_learned(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of an agent to run inside `products` if the agent's `rounded` is set."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if not self.rounded or torch.compiler.is_compiling():
            return method(self, *args, **options)
        with products():
            return method(self, *args, **options)

    return call if enabled else method


def active() -> bool:
    """Whether this thread is inside `products` and the CPU supports bfloat16."""
    return _local.on and routine() != 0


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether x [..., I] weight^T, with weight [J, I], now uses bfloat16 factors, for any number of rows of x."""
    return (
        not torch.compiler.is_compiling()
        and _local.on
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and large(weight)
        and not torch.is_autocast_enabled("cpu")
        and not under_torch_func()
        and routine() != 0
    )


def large(weight: Tensor) -> bool:
    return weight.numel() >= MIN_WEIGHTS and min(weight.shape) >= MIN_SIDE


@functools.cache
def instructions() -> str:
    """Return the name of the CPU's bfloat16 instructions that oneDNN may use; "" if there are none."""
    file = Path("/proc/cpuinfo")
    if not file.exists() or any(name in os.environ for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")):
        return ""
    flags = file.read_text().partition("flags")[2].partition("\n")[0].split()
    return next((name for name in (TILE_CPU, WORD_CPU) if name in flags), "")


@functools.cache
def routine() -> int:
    """Return the routine's address, or 0 if it is unavailable; a failure on a suitable CPU is logged once."""
    if not (enabled and instructions() and torch.backends.mkldnn.is_available()):
        return 0
    try:
        address = ctypes.cast(getattr(_library(), _BRGEMM), ctypes.c_void_p).value or 0
        x, weight = torch.arange(-8.0, 7).view(3, 5), torch.arange(-9.0, 11).view(4, 5)
        if not torch.equal(_multiply(address, x, packed(weight)), x @ weight.t()):
            raise ArithmeticError("a small multiplication differs from torch's")
    except Exception as problem:  # other builds of torch; float32 works everywhere
        logging.getLogger(__name__).warning("no bfloat16 multiplications: %s", problem)
        return 0
    return address


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(next(Path(torch.__path__[0], "lib").glob("libtorch_cpu.*"))))


def missing() -> str:
    return "this build of torch, or no compiled code" if instructions() else "no AVX512-BF16 or AMX"


def release() -> None:
    """Free the tile registers, if any, after this thread's last multiplication."""
    if instructions() == TILE_CPU:
        getattr(_library(), _RELEASE)(ctypes.c_bool(True))


@functools.cache
def pays() -> bool:
    """Whether the routine is faster than float32, rounding and packing included; measured once, in 0.2 s."""
    if not routine():
        return False
    x, weight = torch.randn(512, 512), torch.randn(512, 512)
    times = [np.inf, np.inf]
    for turn in range(40):  # alternately, so that other load on the machine slows both
        begin = time.perf_counter()
        product(x, weight) if turn % 2 else torch.mm(x, weight.t())
        times[turn % 2] = min(times[turn % 2], time.perf_counter() - begin)
    return times[1] < 0.8 * times[0]


def packed(weight: Tensor) -> Tensor:
    """weight [J, I] -> words [I / 2, J] for x weight^T, or a stack of both; I is padded with zeros to an even size.
    For a transposed matrix, whose I may be a varying batch size, I is padded to a multiple of PAD."""
    weight = weight.detach()
    if weight.dim() == 3:
        return torch.stack([packed(layer) for layer in weight])
    if weight.is_contiguous():
        rounded = weight.bfloat16()
        if rounded.shape[1] % 2:  # padding by nothing would copy
            rounded = torch.nn.functional.pad(rounded, (0, 1))
        return rounded.view(torch.float32).t().contiguous()
    terms = weight.t().contiguous()  # [I, J]
    words = terms.new_empty(-(-len(terms) // PAD) * PAD // 2, terms.shape[1])
    _pack(terms.numpy(), 0, 0, words.shape[1], words.numpy().view(np.uint32), len(words))
    return words


def once(make: Callable[..., Tensor], *weights: Tensor) -> Tensor:
    """Return make(*weights), computed once per version of the weights while the network acts."""
    views = any(weight.is_inference() or weight._base is not None for weight in weights)  # pyright: ignore
    if views or not torch.is_inference_mode_enabled():
        return make(*weights)
    versions = [weight._version for weight in weights]  # pyright: ignore
    results = _cache.setdefault(weights[0], {})
    if make not in results or results[make][0] != versions:
        with torch.inference_mode(False), torch.no_grad():  # so that the result has a version, too
            results[make] = versions, make(*weights)
    return results[make][1]


def stacked(*weights: Tensor) -> Tensor:
    """Stack weights [...] to [N, ...], in a function with an identity for `once`."""
    return torch.stack(weights)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, I], weight [J, I], bias [J] -> x weight^T + bias [R, J]; no gradient."""
    return _multiply(routine(), x, once(packed, weight), bias)


def _multiply(address: int, x: Tensor, packed_weight: Tensor, bias: Tensor | None = None) -> Tensor:
    with torch.inference_mode(False):  # other threads are not in inference mode and must not write to inference tensors
        out = torch.empty(len(x), packed_weight.shape[1])
    offset = (packed_weight.new_empty(0) if bias is None else bias).detach().numpy()
    transposed = not x.is_contiguous() and x.t().is_contiguous()
    rows, factor, sums = (x.t() if transposed else x.contiguous()).detach().numpy(), packed_weight.numpy(), out.numpy()
    blocks = -(-len(x) // ROWS)
    pieces = min(4, blocks) if len(x) * packed_weight.numel() * 2 >= PIECES_FROM else 1

    def work(piece: int) -> None:
        first, last = (min(ROWS * (blocks * index // pieces), len(x)) for index in (piece, piece + 1))
        _multiply_blocks(address, first, last, rows, transposed, factor, offset, sums)
        release()

    share(work, pieces)
    return out


@intrinsic
def _brgemm(context: Any, routine: Any, sizes: Any, adds: Any, a: Any, b: Any, c: Any) -> Any:
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
def _to_bfloat16(x: float) -> int:
    """Round to nearest, ties to even: the upper half of a float32's bits, as uint16."""
    bits = np.float32(x).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + odd + np.uint32(0x7FFF)) >> np.uint32(16))  # pyright: ignore


@compiled(inline=True)
def _round(x: Array, out: Array) -> None:
    for c in range(len(x)):
        out[c] = _to_bfloat16(x[c])


@compiled(inline=True)
def multiply_rounded(routine: int, x: Array, words: Array, out: Array) -> None:
    """out [R, J] = x [R, I] times packed words [I / 2, J], for few rows; all contiguous."""
    rows, width, size = len(x), 2 * len(words), x.shape[1]
    rounded = np.empty((rows, width), np.uint16)
    for r in range(rows):
        _round(x[r], rounded[r])
        rounded[r, size:] = 0
    sizes = rows, out.shape[1], width, width, out.shape[1], out.shape[1]
    _brgemm(routine, sizes, False, rounded.ctypes.data, words.ctypes.data, out.ctypes.data)  # pyright: ignore


@compiled(inline=True)
def _pack(terms: Array, start: int, first: int, last: int, words: Array, count: int) -> None:
    """words[:count] = rounded pairs of rows start + 2 i, start + 2 i + 1 of terms[:, first:last]; 0 past the end."""
    half = np.uint32(16)
    for i in range(count):
        row, out = start + 2 * i, words[i, : last - first]
        if row >= len(terms):
            out[:] = 0
            continue
        low, high = terms[row, first:last], terms[min(row + 1, len(terms) - 1), first:last]
        mask = np.uint32(0xFFFFFFFF) if row + 1 < len(terms) else np.uint32(0xFFFF)
        for j in range(len(out)):
            out[j] = (np.uint32(_to_bfloat16(high[j])) << half | np.uint32(_to_bfloat16(low[j]))) & mask


@compiled(inline=True)
def _pack_transposed(terms: Array, start: int, first: int, last: int, out: Array, count: int, tile: Array) -> None:
    """out [R, :count] = the transposed result of `_pack`, in tiles that stay in the cache."""
    for begin in range(0, count, len(tile)):
        size = min(len(tile), count - begin)
        _pack(terms, start + 2 * begin, first, last, tile, size)
        for r in range(last - first):
            into, column = out[r, begin : begin + size], tile[:, r]
            for i in range(size):
                into[i] = column[i]


@compiled()
def _multiply_blocks(
    routine: int, begin: int, end: int, x: Array, transposed: bool, words: Array, bias: Array, out: Array
) -> None:
    """out [R, J] = x [R, I] times packed words [I / 2, J], plus bias [J] or [0], for rows `begin` to `end`, in blocks.
    With `transposed`, x is [I, R]."""
    width, size, columns = 2 * len(words), x.shape[0] if transposed else x.shape[1], out.shape[1]
    pairs = np.empty((ROWS, min(CHUNK, width) // 2), np.uint32)
    rounded = pairs.view(np.uint16)
    tile = np.empty((PAD // 2, ROWS), np.uint32)
    apart = np.empty((ROWS, columns), out.dtype)  # for row counts that are not multiples of 8
    for first in range(begin, end, ROWS):
        rows = min(ROWS, end - first)
        whole = -(-rows // 8) * 8
        for start in range(0, width, CHUNK):
            terms = min(CHUNK, width - start)
            if transposed:
                _pack_transposed(x, start, first, first + rows, pairs, terms // 2, tile)
            else:
                for r in range(rows):
                    _round(x[first + r, start : start + terms], rounded[r])
                    rounded[r, max(size - start, 0) : terms] = 0
            sizes = whole, columns, terms, rounded.shape[1], columns, columns
            target = out[first:].ctypes.data if whole == rows else apart.ctypes.data
            _brgemm(routine, sizes, start > 0, rounded.ctypes.data, words[start // 2 :].ctypes.data, target)  # pyright: ignore
        for r in range(rows):
            if whole != rows:
                out[first + r, :] = apart[r]
            for j in range(len(bias)):
                out[first + r, j] += bias[j]
