"""Matrix multiplications with bfloat16 factors and float32 sums, on CPUs with instructions for them.

The routine is oneDNN's `brgemm`, which torch exports for its own kernels. It is as fast for 8 rows as for thousands, so
the compiled loops of the cores use it at every step. Factors are rounded to the nearest bfloat16 (8 bits of mantissa).
Whether they are rounded depends only on the weights, not on the batch, so actor and learner compute the same function.

The second factor is packed: [I, J] becomes [I / 2, J] words of 32 bits, each two values of one column, typed float32.
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

MIN_WEIGHTS = 2**14
"""Smaller matrices stay float32: rounding and a call cost more than they save."""
MIN_SIDE = 16
ROWS = 64
"""Rows of a block: a block and its sums stay in the nearest caches."""
CHUNK = 1024
"""Terms of a sum that a block adds at once, a multiple of PAD."""
PAD = 32
"""Counts of rows and of terms are rounded up to multiples of 8 and of this: every size is compiled once."""
PIECES_FROM = 2**26
"""Number of multiplications from which threads share a matrix multiplication."""
TILE_CPU, WORD_CPU = "amx_bf16", "avx512_bf16"
_BRGEMM = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"


class _Local(threading.local):
    on = False


_local = _Local()
_made: Any = WeakTensorKeyDictionary()
"""Packed and stacked weights of acting networks, by first weight and function, with their versions."""


@contextmanager
def products(on: bool = True) -> Generator[None]:
    """Set whether large multiplications of this thread, and their gradients, round factors to bfloat16."""
    before, _local.on = _local.on, on
    try:
        yield
    finally:
        _local.on = before


def as_learned(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of an agent to run inside `products` if the agent's `rounded` is set."""

    if not enabled:
        return method

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if not self.rounded or torch.compiler.is_compiling():
            return method(self, *args, **options)
        with products():
            return method(self, *args, **options)

    return call


def active() -> bool:
    """Whether this thread is inside `products` and its CPU supports it."""
    return _local.on and routine() != 0


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether x [..., I] weight^T, weight [J, I], currently uses bfloat16 factors, for x of any length."""
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
    """Whether a matrix is large enough for rounding."""
    return weight.numel() >= MIN_WEIGHTS and min(weight.shape) >= MIN_SIDE


@functools.cache
def instructions() -> str:
    """Name of the CPU's bfloat16 instructions that oneDNN may use; "" if there are none."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return ""
    limited = any(name in os.environ for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"))
    return next((name for name in (TILE_CPU, WORD_CPU) if name in flags and not limited), "")


@functools.cache
def routine() -> int:
    """Address of the routine; 0 if this CPU or this build of torch has none, which is reported once."""
    if not (enabled and instructions() and torch.backends.mkldnn.is_available()):
        return 0
    try:
        address = ctypes.cast(getattr(_library(), _BRGEMM), ctypes.c_void_p).value or 0
        x, weight = torch.arange(-8.0, 7).view(3, 5), torch.arange(-9.0, 11).view(4, 5)
        if not torch.equal(_multiplied(address, x, packed(weight)), x @ weight.t()):
            raise ArithmeticError("a small multiplication differs from torch's")
    except Exception as problem:  # other builds of torch; float32 works everywhere
        logging.getLogger(__name__).warning("no bfloat16 multiplications: %s", problem)
        return 0
    return address


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(next(Path(torch.__path__[0], "lib").glob("libtorch_cpu.*"))))


def missing() -> str:
    """Reason for the missing routine."""
    if instructions():
        return "this build of torch" if enabled else "without compiled code"
    return "no AVX512-BF16 or AMX"


def release() -> None:
    """Free the tile registers, if any, of this thread's CPU after its last multiplication."""
    if instructions() == TILE_CPU:
        getattr(_library(), _RELEASE)(ctypes.c_bool(True))


@functools.cache
def pays() -> bool:
    """Whether the routine is faster than float32, rounding and packing included; measured once, in 0.2 s."""
    if not routine():
        return False
    x, weight = torch.randn(512, 512), torch.randn(512, 512)
    times = [np.inf, np.inf]
    for turn in range(40):  # in turns, so that other load on the machine slows both
        begin = time.perf_counter()
        product(x, weight) if turn % 2 else torch.mm(x, weight.t())
        times[turn % 2] = min(times[turn % 2], time.perf_counter() - begin)
    return times[1] < 0.8 * times[0]


def packed(weight: Tensor) -> Tensor:
    """weight [J, I] -> words [I / 2, J] for x weight^T; I is padded with zeros to an even size.

    For a transposed matrix, which may be a batch of any size, it is padded to a multiple of PAD.
    """
    weight = weight.detach()
    if weight.is_contiguous():
        rounded = weight.bfloat16()
        if rounded.shape[1] % 2:
            rounded = torch.nn.functional.pad(rounded, (0, 1))
        return rounded.view(torch.float32).t().contiguous()
    terms = weight.t().contiguous()  # [I, J]; where it is a batch, I differs from call to call
    words = terms.new_empty(-(-len(terms) // PAD) * PAD // 2, terms.shape[1])
    _packed_pairs(terms.numpy(), words.numpy().view(np.uint32))
    return words


def once(make: Callable[..., Tensor], *weights: Tensor) -> Tensor:
    """make(*weights), computed once per version of the weights while the network acts."""
    views = any(weight.is_inference() or weight._base is not None for weight in weights)  # pyright: ignore
    if views or not torch.is_inference_mode_enabled():
        return make(*weights)
    versions = [weight._version for weight in weights]  # pyright: ignore
    made = _made.setdefault(weights[0], {})
    if make not in made or made[make][0] != versions:
        made[make] = versions, make(*weights)
    return made[make][1]


def stacked(*weights: Tensor) -> Tensor:
    """[N, ...] of N weights [...]."""
    return torch.stack(weights)


def packed_stack(*weights: Tensor) -> Tensor:
    """`packed` of weights of one shape, [N, I / 2, J], of one weight [I / 2, J]."""
    each = [packed(weight) for weight in weights]
    return each[0] if len(each) == 1 else torch.stack(each)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, I], weight [J, I], bias [J] -> x weight^T + bias [R, J]; no gradient."""
    return _multiplied(routine(), x, once(packed, weight), bias)


def _multiplied(address: int, x: Tensor, packed_weight: Tensor, bias: Tensor | None = None) -> Tensor:
    with torch.inference_mode(False):  # other threads are not in inference mode and must not write to its tensors
        out = torch.empty(len(x), packed_weight.shape[1])
    offset = (packed_weight.new_empty(0) if bias is None else bias).detach().numpy()
    turned = not x.is_contiguous() and x.t().is_contiguous()
    rows, factor, sums = (x.t() if turned else x.contiguous()).detach().numpy(), packed_weight.numpy(), out.numpy()
    blocks = -(-len(x) // ROWS)
    pieces = min(4, blocks) if len(x) * packed_weight.numel() * 2 >= PIECES_FROM else 1

    def work(piece: int) -> None:
        first, last = (min(ROWS * (blocks * number // pieces), len(x)) for number in (piece, piece + 1))
        _blocks(address, first, last, rows, turned, factor, offset, sums)
        release()

    share(work, pieces)
    return out


@intrinsic
def _rounded(context: Any, number: Any) -> Any:
    """The upper half of a float32's bits, rounded to nearest, ties to even: uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        if str(value.type) == "double":
            value = builder.fptrunc(value, ir.FloatType())
        word = ir.IntType(32)
        bits = builder.bitcast(value, word)
        odd = builder.and_(builder.lshr(bits, word(16)), word(1))
        sums = builder.add(bits, builder.add(odd, word(0x7FFF)))
        return builder.trunc(builder.lshr(sums, word(16)), ir.IntType(16))

    return types.uint16(number), generate


@intrinsic
def _brgemm(context: Any, routine: Any, sizes: Any, adds: Any, a: Any, b: Any, c: Any) -> Any:
    """C [M, N] = A [M, K] B, `sizes` being M, N, K and the widths of A, B and C; with `adds` it is added to C."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        routine, sizes, adds, *matrices = arguments
        long, flag, pointer = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
        numbers = cgutils.unpack_tuple(builder, sizes)
        a, b, c = (builder.inttoptr(matrix, pointer) for matrix in matrices)
        function = ir.FunctionType(ir.VoidType(), [long] * 6 + [flag, pointer, pointer, pointer, flag])
        call = builder.inttoptr(routine, function.as_pointer())
        builder.call(call, [*numbers, builder.zext(adds, flag), a, b, c, flag(1)])
        return context.get_dummy_value()

    intp = types.intp
    return types.void(intp, types.UniTuple(intp, 6), types.boolean, intp, intp, intp), generate


@compiled(inline=True)
def _round(x: Array, out: Array) -> None:
    """out [F] = x, rounded."""
    for c in range(len(x)):
        out[c] = _rounded(x[c])  # pyright: ignore


@compiled(inline=True)
def multiply_rounded(routine: int, x: Array, words: Array, out: Array) -> None:
    """out [R, J] = x [R, I] times packed words [I / 2, J], for few rows; all without gaps."""
    rows, width, size = len(x), 2 * len(words), x.shape[1]
    rounded = np.empty((rows, width), np.uint16)
    for r in range(rows):
        _round(x[r], rounded[r])
        rounded[r, size:] = 0
    sizes = rows, out.shape[1], width, width, out.shape[1], out.shape[1]
    _brgemm(routine, sizes, False, rounded.ctypes.data, words.ctypes.data, out.ctypes.data)  # pyright: ignore


@compiled(inline=True)
def _pairs(terms: Array, start: int, first: int, last: int, words: Array, count: int) -> None:
    """words[:count] = rounded pairs of rows start + 2 i and start + 2 i + 1 of terms[:, first:last], zeros below."""
    half = np.uint32(16)
    for i in range(count):
        row, out = start + 2 * i, words[i, : last - first]
        if row >= len(terms):
            out[:] = 0
            continue
        low, high = terms[row, first:last], terms[min(row + 1, len(terms) - 1), first:last]
        used = np.uint32(0xFFFFFFFF) if row + 1 < len(terms) else np.uint32(0xFFFF)
        for j in range(len(out)):
            out[j] = (np.uint32(_rounded(high[j])) << half | np.uint32(_rounded(low[j]))) & used  # pyright: ignore


@compiled(inline=True)
def _turned(terms: Array, start: int, first: int, last: int, out: Array, count: int, tile: Array) -> None:
    """out [R, :count] = the transpose of `_pairs`, in tiles that stay in the cache."""
    for begin in range(0, count, len(tile)):
        size = min(len(tile), count - begin)
        _pairs(terms, start + 2 * begin, first, last, tile, size)
        for r in range(last - first):
            into, column = out[r, begin : begin + size], tile[:, r]
            for i in range(size):
                into[i] = column[i]


@compiled()
def _packed_pairs(terms: Array, words: Array) -> None:
    _pairs(terms, 0, 0, words.shape[1], words, len(words))


@compiled()
def _blocks(routine: int, begin: int, end: int, x: Array, turned: bool, words: Array, bias: Array, out: Array) -> None:
    """Rows `begin` to `end` of out [R, J] = x [R, I] times packed words [I / 2, J], plus bias [J] or [0], in blocks.

    With `turned` x is [I, R].
    """
    width, size, columns = 2 * len(words), x.shape[0] if turned else x.shape[1], out.shape[1]
    pairs = np.empty((ROWS, min(CHUNK, width) // 2), np.uint32)
    rounded = pairs.view(np.uint16)
    tile = np.empty((PAD // 2, ROWS), np.uint32)
    apart = np.empty((ROWS, columns), out.dtype)  # for row counts that are no multiple of 8
    for first in range(begin, end, ROWS):
        rows = min(ROWS, end - first)
        whole = -(-rows // 8) * 8
        for start in range(0, width, CHUNK):
            terms = min(CHUNK, width - start)
            if turned:
                _turned(x, start, first, first + rows, pairs, terms // 2, tile)
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
