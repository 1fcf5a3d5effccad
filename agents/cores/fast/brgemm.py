"""Large matrix multiplications with bfloat16 factors, in blocks of rows, and the packing of their second factor.

[I, J] becomes 32-bit words [I / 2, J] of type float32, each with two values of one column.
"""

import ctypes
import functools
import logging
import time

import numpy as np
import torch
from torch import Tensor

from ....base.compiled import compiled, enabled
from ...threads import share
from .blas import brgemm, instructions, release, round_row, to_bfloat16, torch_library
from .elementwise import Array

ROWS = 64  # Rows of a block: a block and its sums stay in the fastest caches.
CHUNK = 1024  # Terms of a sum that a block adds at once, a multiple of PAD
PAD = 32  # Row counts are rounded up to multiples of 8, term counts to multiples of this: each size needs compiling.
PIECES_FROM = 2**26  # Number of scalar multiplications from which threads share a matrix multiplication
_BRGEMM = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"


@functools.cache
def routine() -> int:
    """Return the routine's address, or 0 if it is unavailable; a failure on a suitable CPU is logged once."""
    if not (enabled and instructions() and torch.backends.mkldnn.is_available()):
        return 0
    try:
        address = ctypes.cast(getattr(torch_library(), _BRGEMM), ctypes.c_void_p).value or 0
        x, weight = torch.arange(-8.0, 7).view(3, 5), torch.arange(-9.0, 11).view(4, 5)
        if not torch.equal(multiply(address, x, packed(weight)), x @ weight.t()):
            raise ArithmeticError("a small multiplication differs from torch's")
    except Exception as problem:  # other builds of torch; float32 works everywhere
        logging.getLogger(__name__).warning("no bfloat16 multiplications: %s", problem)
        return 0
    return address


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


def multiply(address: int, x: Tensor, packed_weight: Tensor, bias: Tensor | None = None) -> Tensor:
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
            out[j] = (np.uint32(to_bfloat16(high[j])) << half | np.uint32(to_bfloat16(low[j]))) & mask


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
                    round_row(x[first + r, start : start + terms], rounded[r])
                    rounded[r, max(size - start, 0) : terms] = 0
            sizes = whole, columns, terms, rounded.shape[1], columns, columns
            target = out[first:].ctypes.data if whole == rows else apart.ctypes.data
            brgemm(routine, sizes, start > 0, rounded.ctypes.data, words[start // 2 :].ctypes.data, target)  # pyright: ignore
        for r in range(rows):
            if whole != rows:
                out[first + r, :] = apart[r]
            for j in range(len(bias)):
                out[first + r, j] += bias[j]


def missing() -> str:
    return "this build of torch, or no compiled code" if instructions() else "no AVX512-BF16 or AMX"


@functools.cache
def pays() -> bool:
    """Whether the routine is faster than float32, rounding and packing included; measured once, in 0.2 s."""
    if not routine():
        return False
    x, weight = torch.randn(512, 512), torch.randn(512, 512)
    times = [np.inf, np.inf]
    for turn in range(40):  # alternately, so that other load on the machine slows both
        begin = time.perf_counter()
        multiply(routine(), x, packed(weight)) if turn % 2 else torch.mm(x, weight.t())
        times[turn % 2] = min(times[turn % 2], time.perf_counter() - begin)
    return times[1] < 0.8 * times[0]
