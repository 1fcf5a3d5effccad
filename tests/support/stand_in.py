"""A device of its own for tests: torch's place for new devices, with a CPU behind it that nobody may look at.

Its tensors say `standin:0` and compute on the CPU, so results can be compared with the CPU's. What would make the
processor wait for a GPU, or fail on one, raises StandInError here: reading a number, a shape that depends on numbers,
an operation between tensors of two devices, and, inside `learning()`, any copy from the host.

With `use_streams()` it has streams: a non-blocking copy to the host arrives when its event is waited for, and an
operation on a tensor that another stream may still write, read or own raises StandInError.

Import it in a process of its own: torch can be given one new device, for good.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


class StandInError(RuntimeError):
    """Something that no device would do without making the processor wait."""


READS = ("_local_scalar_dense", "is_nonzero", "equal", "item", "nonzero", "nonzero_static", "masked_select", "unique")
"""Operations that give numbers to the host, or shapes that depend on numbers."""

_setup_privateuseone_for_python_backend("standin")
DEVICE, SECOND = torch.device("standin:0"), torch.device("standin:1")
_state = {"learning": False}


class _Generator(torch.Generator):
    """One of the device is one of the CPU, which computes."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return super().__new__(cls, "cpu" if torch.device(device).type == DEVICE.type else device)


torch.Generator = _Generator
counts = {"in": 0, "out": 0, "operations": 0}
"""Copies to the device, copies from it, and operations on it."""


class Event:
    """Operations of a stream when the event was recorded: its own, and those that it waited for."""

    def __init__(self, stream: "Stream") -> None:
        self.stream, self.clock, self.copies = stream, stream.clock.copy(), stream.copies[:]

    def synchronize(self) -> None:
        for stream, count in self.clock.items():
            _done[stream] = max(_done[stream], count)
        for copy in self.copies:
            if copy in self.stream.copies:
                self.stream.copies.remove(copy)
                copy()


class Stream:
    """Operations in their order; a vector clock says which ones of other streams come before."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.priority = priority
        self.clock: Counter[Stream] = Counter()
        self.copies: list[Callable[[], Any]] = []
        """Copies to the host that have not arrived."""

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        self.clock |= event.clock

    def after(self, use: "tuple[Stream, int]") -> bool:
        """Whether what is done on this stream now comes after that."""
        return max(self.clock[use[0]], _done[use[0]]) >= use[1]


waits: list[str] = []
"""Threads that waited for all that was started on their stream, in order."""
hazards: list[str] = []
"""Memory that was given back while another stream might still use it."""
_done: Counter[Stream] = Counter()
"""Operations that the host has waited for."""
_main = Stream()
_local = threading.local()


class Memory:
    """The uses of a tensor's memory; views share it."""

    def __init__(self) -> None:
        self.owner, self.written = current_stream(), None
        self.read: list[tuple[Stream, int]] = []
        self.kept_for: set[Stream] = {self.owner}
        self.names: dict[tuple[Stream, int], str] = {}

    def __deepcopy__(self, _: Any) -> "Memory":
        return Memory()

    def use(self, name: str, writes: bool) -> None:
        here = current_stream()
        now = here, here.clock[here]
        self.names[now] = name
        before = [self.written, *(self.read if writes else [])]
        if not all(here.after(use) for use in before if use):
            raise StandInError(f"{name} while another stream may still use the tensor")
        if writes:
            self.written, self.read = now, []
        else:
            self.read = [use for use in self.read if use[0] is not here] + [now]

    def __del__(self) -> None:
        for use in [self.written, *self.read]:
            if use and use[0] not in self.kept_for and not self.owner.after(use):
                hazards.append(f"memory is given back while {self.names[use]} may still use it")


def current_stream(device: Any = None) -> Stream:
    return getattr(_local, "stream", _main)


@contextlib.contextmanager
def stream(chosen: Stream) -> Generator[None]:
    before, _local.stream = current_stream(), chosen
    try:
        yield
    finally:
        _local.stream = before


def use_streams() -> None:
    """Give the device streams."""
    module = torch.get_device_module(DEVICE)
    module.Stream, module.current_stream, module.stream = Stream, current_stream, stream


class OnDevice(torch.Tensor):
    """A tensor of the device."""

    raw: torch.Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, raw: torch.Tensor, device: torch.device = DEVICE) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=device
        )
        made.raw, made.memory = raw, Memory()
        return made

    def record_stream(self, s: Any) -> None:
        """The allocator keeps the memory until the stream is done with it."""
        self.memory.kept_for.add(s)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, *args, **(kwargs or {}))


@contextlib.contextmanager
def learning() -> Generator[None]:
    """No value is copied from or to the device inside, except by operations that allow it."""
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
    to_host = to_host or (name == "copy_" and not isinstance(flat[0], OnDevice))
    if to_host:
        _count("out")
    elif name in ("copy_", "_to_copy") and theirs:
        _count("in")
    known = {id(x.raw): x for x in ours}
    device = next((x for x in flat if _is_ours(x)), ours[0].device if ours else DEVICE)
    plain = [torch.device("cpu") if _is_ours(x) else x.raw if isinstance(x, OnDevice) else x for x in flat]
    args, kwargs = pytree.tree_unflatten(plain, form)
    here = current_stream()
    here.clock[here] += 1
    for number, x in enumerate(ours):
        x.memory.use(name, writes=number == 0 and x is flat[0] and name.endswith("_"))
    if name == "copy_" and to_host and kwargs.get("non_blocking", list(args[2:]) == [True]):
        here.copies.append(lambda: operation(*args, **kwargs))
        return flat[0]
    if to_host or name in READS:
        waits.append(threading.current_thread().name)
        here.record_event().synchronize()
    result = operation(*args, **kwargs)
    if to_host or name == "_local_scalar_dense" or (flat and flat[0] is result):
        return result

    def wrap(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) in known:
            return known[id(x)]
        made = OnDevice(x.resolve_conj().resolve_neg(), device)
        same = [y for y in ours if y.raw.untyped_storage()._cdata == made.raw.untyped_storage()._cdata]
        if same:
            made.memory = same[0].memory
        else:
            made.memory.use(name, writes=True)
        return made

    return pytree.tree_map(wrap, result)


def _refuse(name: str, ours: list[OnDevice], theirs: list[torch.Tensor]) -> None:
    if name in READS and _state["learning"]:
        raise StandInError(f"{name} makes the processor wait for the device")
    if _state["learning"] and name.startswith("index") and any(x.dtype == torch.bool for x in ours[1:]):
        raise StandInError(f"{name} by a mask has a shape that only the device knows")
    if name not in ("copy_", "_to_copy") and len({x.device for x in ours}) > 1:
        raise StandInError(f"{name} of tensors on {sorted({str(x.device) for x in ours})}")
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
