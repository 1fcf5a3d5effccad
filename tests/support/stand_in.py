"""A device of its own for tests: torch's place for new devices, with a CPU behind it that nobody may look at.

Its tensors say `standin:0` and compute on the CPU, so results can be compared with the CPU's. What would make the
processor wait for a GPU, or fail on one, raises StandInError here: reading a number, a shape that depends on numbers,
an operation between tensors of two devices, and, inside `learning()`, any copy from the host.

Import it in a process of its own: torch can be given one new device, for good.
"""

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


class StandInError(RuntimeError):
    """Something that no device would do without making the processor wait."""


READS = ("_local_scalar_dense", "is_nonzero", "equal", "item", "nonzero", "nonzero_static", "masked_select", "unique")
"""Operations that give numbers to the host, or shapes that depend on numbers."""

_setup_privateuseone_for_python_backend("standin")
DEVICE = torch.device("standin:0")
_state = {"learning": False}
counts = {"in": 0, "out": 0, "operations": 0}
"""Copies to the device, copies from it, and operations on it."""


class OnDevice(torch.Tensor):
    """A tensor of the device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, *args, **(kwargs or {}))


@contextlib.contextmanager
def learning() -> Generator[None]:
    """Nothing is copied from or to the device inside, but by operations that were told so."""
    _state["learning"] = True
    try:
        yield
    finally:
        _state["learning"] = False


@contextlib.contextmanager
def allowed() -> Generator[None]:
    """Copies are allowed again inside."""
    before, _state["learning"] = _state["learning"], False
    try:
        yield
    finally:
        _state["learning"] = before


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    flat, form = pytree.tree_flatten((args, kwargs))
    name = operation.name().removeprefix("aten::").split(".")[0]
    ours = [x for x in flat if isinstance(x, OnDevice)]
    theirs = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, OnDevice)]
    _refuse(name, ours, theirs)
    counts["operations"] += 1
    to_host = any(isinstance(x, torch.device) and x.type == "cpu" for x in flat)
    if to_host or (name == "copy_" and flat[0] is not None and not isinstance(flat[0], OnDevice)):
        _count("out")
    elif name in ("copy_", "_to_copy") and theirs:
        _count("in")
    known = {id(x.raw): x for x in ours}
    plain = [torch.device("cpu") if _is_ours(x) else x.raw if isinstance(x, OnDevice) else x for x in flat]
    args, kwargs = pytree.tree_unflatten(plain, form)
    result = operation(*args, **kwargs)
    if to_host or name == "_local_scalar_dense" or (flat and flat[0] is result):
        return result

    def wrap(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else OnDevice(x.resolve_conj().resolve_neg())

    return pytree.tree_map(wrap, result)


def _refuse(name: str, ours: list[OnDevice], theirs: list[torch.Tensor]) -> None:
    if name in READS and _state["learning"]:
        raise StandInError(f"{name} makes the processor wait for the device")
    if _state["learning"] and name.startswith("index") and any(x.dtype == torch.bool for x in ours[1:]):
        raise StandInError(f"{name} by a mask has a shape that only the device knows")
    if name not in ("copy_", "_to_copy") and ours and any(x.dim() for x in theirs):
        raise StandInError(f"{name} of tensors on the device and {[tuple(x.shape) for x in theirs]} on the host")


def _count(way: str) -> None:
    if _state["learning"]:
        raise StandInError(f"a copy {way} between the batch's arrival and the reading of metrics")
    counts[way] += 1


def _is_ours(x: Any) -> bool:
    return isinstance(x, torch.device) and x.type == DEVICE.type


_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, "PrivateUse1")
