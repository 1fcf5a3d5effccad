"""Nested state as a JSON document plus a flat table of tensors, and back, bit for bit.

    None, bool, int, str, finite float, list, dict with plain string keys      as themselves
    torch tensor            {"$tensor": name}      comes back on the CPU, contiguous, without gradient
    numpy array             {"$array": name}       comes back as a numpy array
    numpy scalar            {"$scalar": name}      comes back as a numpy scalar
    tuple                   {"$tuple": [...]}      a NamedTuple comes back as a plain tuple
    other dicts             {"$items": [[key, value], ...]}     keys are str or int; a str may start with "$"
    nan, inf, -inf          {"$float": "nan"}      JSON lacks these values

A name is the path to the tensor, so the table can be read on its own.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Pack a state into a document (for `json.dumps`) and tensors by name. Raises TypeError naming the path."""
    tensors: dict[str, Tensor] = {}
    return _pack(state, (), tensors), tensors


def unpack(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Restore a packed state. Raises KeyError or ValueError if the document is not from `pack`."""
    if isinstance(document, list):
        return [unpack(part, tensors) for part in document]
    if not isinstance(document, dict):
        return document
    tag = next((key for key in document if key.startswith("$")), None)
    if tag is None:
        return {key: unpack(value, tensors) for key, value in document.items()}
    content = document[tag]
    if tag == "$tensor":
        return tensors[content]
    if tag == "$array":
        return tensors[content].numpy()
    if tag == "$scalar":
        return tensors[content].numpy()[()]
    if tag == "$tuple":
        return tuple(unpack(part, tensors) for part in content)
    if tag == "$items":
        return {key: unpack(value, tensors) for key, value in content}
    if tag == "$float":
        return float(content)
    raise ValueError(f"unknown tag {tag!r}")


def _pack(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, Tensor):
        # A copy, since saving a view would save the whole underlying storage.
        return {"$tensor": _add(value.detach().cpu().clone(memory_format=torch.contiguous_format), path, tensors)}
    if isinstance(value, np.ndarray):
        return {"$array": _add(_from_numpy(value, path), path, tensors)}
    if isinstance(value, np.generic):
        return {"$scalar": _add(_from_numpy(np.asarray(value), path), path, tensors)}
    if isinstance(value, Mapping):
        return _pack_mapping(value, path, tensors)
    if isinstance(value, list | tuple):
        parts = [_pack(part, (*path, str(i)), tensors) for i, part in enumerate(value)]
        return {"$tuple": parts} if isinstance(value, tuple) else parts
    raise TypeError(f"state at {_place(path)} is a {type(value).__name__}; allowed: {_ALLOWED}")


def _pack_mapping(value: Mapping[Any, Any], path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    for key in value:
        if type(key) not in (str, int):
            raise TypeError(f"state at {_place(path)} has the key {key!r}; allowed: str or int")
    packed = [[key, _pack(part, (*path, str(key)), tensors)] for key, part in value.items()]
    plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
    return dict(packed) if plain else {"$items": packed}


def _from_numpy(array: np.ndarray[Any, Any], path: tuple[str, ...]) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, order="C"))
    except (TypeError, ValueError) as problem:
        raise TypeError(f"state at {_place(path)} is an array of {array.dtype}, unsupported by torch") from problem


def _add(tensor: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]) -> str:
    name = "/".join(path)
    while name in tensors:  # {"a": {"b": x}, "a/b": y}
        name += "'"
    tensors[name] = tensor
    return name


def _place(path: tuple[str, ...]) -> str:
    return "/".join(path) or "the top level"


_ALLOWED = "tensors, numpy arrays, None, bool, int, float, str, and lists, tuples and dicts of them"
