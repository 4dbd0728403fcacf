"""Nested Python values with tensors inside, as a small JSON structure plus raw bytes. Used on both sides of the shared
arena; torch and the standard library only. Not a serialiser of arbitrary objects: whatever is neither a tensor, a
scalar, a string, None, nor a list, tuple or dict of those is described by its type name and cannot be rebuilt.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

ALIGNMENT = 256
"""Bytes; as the CUDA allocator aligns."""

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Whose reading runs no code but torch's"""

Spec = dict[str, Any]


def dtype_name(dtype: torch.dtype) -> str:
    """'float32' and the like."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype behind a name; ValueError if torch has none."""
    value = getattr(torch, name, None)
    if not isinstance(value, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return value


def compact(tensor: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The tensor's distinct elements as one dense row in memory order, and the strides (elements) that rebuild it.

    Keeps contiguous, channels-last, permuted and expanded layouts; overlapping windows become dense.
    """
    shape, old = list(tensor.shape), list(tensor.stride())
    for dim, stride in enumerate(old):
        if stride == 0 and shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    moving = sorted((d for d in range(len(shape)) if shape[d] > 1 and old[d] != 0), key=lambda d: -old[d])
    resting = [d for d in range(len(shape)) if d not in moving]
    row = tensor.permute(resting + moving).reshape(-1)
    strides, step = [0] * len(shape), 1
    for dim in reversed(moving):
        strides[dim] = step
        step *= shape[dim]
    for dim in resting:
        if shape[dim] == 1:
            strides[dim] = step
    if all(shape[d] <= 1 or old[d] != 0 for d in range(len(shape))) and tensor.is_contiguous():
        strides = list(torch.empty(shape, device="meta").stride())
    return row, strides


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes that ``pack`` with ``keep_strides`` writes for a tensor, flat."""
    data = tensor.detach()
    if data.is_conj() or data.is_neg():
        data = data.resolve_conj().resolve_neg()
    return compact(data)[0].contiguous().view(torch.uint8)


def describe(value: Any, tensors: list[torch.Tensor]) -> Spec:
    """The structure of a value; its tensors are appended to ``tensors`` and referred to by position."""
    # Not isinstance(): an object may claim any class.
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        if value.layout is not torch.strided:
            return {"kind": "opaque", "type": f"{value.layout} tensor"}
        tensors.append(value)
        return {"kind": "tensor", "at": len(tensors) - 1}
    if value is None:
        return {"kind": "none"}
    if kind is bool:
        return {"kind": "bool", "value": value}
    if issubclass(kind, int):
        return {"kind": "int", "value": str(int(value))}
    if issubclass(kind, float):
        return {"kind": "float", "value": float(value).hex()}
    if issubclass(kind, str):
        return {"kind": "str", "value": value}
    if kind is torch.dtype:
        return {"kind": "dtype", "value": dtype_name(value)}
    if issubclass(kind, list | tuple):
        items = [describe(v, tensors) for v in value]
        return {"kind": "tuple" if issubclass(kind, tuple) else "list", "items": items}
    if issubclass(kind, dict):
        keys = [describe(k, []) for k in value]
        return {"kind": "dict", "keys": keys, "items": [describe(v, tensors) for v in value.values()]}
    return {"kind": "opaque", "type": f"{kind.__module__}.{kind.__qualname__}"}


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors inside a value, in the order in which ``describe`` refers to them: containers of other classes are
    gone into as well."""
    tensors: list[torch.Tensor] = []
    describe(value, tensors)
    return tensors


def plain(value: Any) -> Any:
    """The value with lists, tuples, dicts, numbers and texts of other classes made into plain ones, by what they hold:
    no method of theirs is called, now or by who goes through the value later."""
    kind = type(value)
    if issubclass(kind, tuple):
        return tuple(plain(item) for item in tuple.__iter__(value))
    if issubclass(kind, list):
        return [plain(item) for item in list.__iter__(value)]
    if issubclass(kind, dict):
        items = OrderedDict.items(value) if issubclass(kind, OrderedDict) else dict.items(value)
        return {plain(key): plain(item) for key, item in items}
    if issubclass(kind, float):
        return float.__pos__(value)
    if issubclass(kind, int) and kind is not bool:
        return int.__pos__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    return value


def type_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's class, which another class may bear as well: that is said of it."""
    kind = type(tensor)
    name = f"{kind.__module__}.{kind.__qualname__}"
    same = next((own for own in TENSORS if name == f"{own.__module__}.{own.__qualname__}"), kind)
    return name if kind is same else f"{name} subclass"


def rebuild(spec: Spec, tensors: list[torch.Tensor]) -> Any:
    """The value behind a structure; ValueError for one that cannot be rebuilt."""
    kind = spec["kind"]
    if kind == "tensor":
        return tensors[spec["at"]]
    if kind == "none":
        return None
    if kind in ("bool", "str"):
        return spec["value"]
    if kind == "int":
        return int(spec["value"])
    if kind == "float":
        return float.fromhex(spec["value"])
    if kind == "dtype":
        return dtype_of(spec["value"])
    if kind in ("list", "tuple"):
        items = [rebuild(item, tensors) for item in spec["items"]]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        keys = [rebuild(key, []) for key in spec["keys"]]
        return {k: rebuild(v, tensors) for k, v in zip(keys, spec["items"], strict=True)}
    raise ValueError(f"a value of type {spec.get('type', kind)} cannot be handed to another process")


def paths(spec: Spec, prefix: str = "") -> list[tuple[str, Spec]]:
    """Every leaf with its path: '0', 'logits', '1.0'; a lone leaf is '0'."""
    kind = spec["kind"]
    if kind in ("list", "tuple"):
        return [leaf for i, item in enumerate(spec["items"]) for leaf in paths(item, f"{prefix}.{i}")]
    if kind == "dict":
        named = zip(spec["keys"], spec["items"], strict=True)
        return [leaf for key, item in named for leaf in paths(item, f"{prefix}.{key.get('value')}")]
    return [(prefix.lstrip(".") or "0", spec)]


def needed(value: Any) -> int:
    """Bytes that ``pack`` needs for a value's tensors."""
    tensors: list[torch.Tensor] = []
    describe(value, tensors)
    return sum(-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in tensors) + ALIGNMENT


def pack(value: Any, into: torch.Tensor, *, keep_strides: bool) -> Spec:
    """Copy a value's tensors into a flat uint8 buffer; returns the whole description, JSON-able.

    ``keep_strides``: as ``compact`` does; otherwise plain row-major order. A tensor that does not fit is described
    without bytes (``"offset": -1``).
    """
    tensors: list[torch.Tensor] = []
    structure = describe(value, tensors)
    entries, at = [], 0
    for tensor in tensors:
        data = tensor.detach()
        if data.is_conj() or data.is_neg():
            data = data.resolve_conj().resolve_neg()
        row, strides = compact(data) if keep_strides else (data.reshape(-1), [])
        size = row.numel() * row.element_size()
        entry: Spec = {
            "type": type_name(tensor),
            "dtype": dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "strides": strides,
            "device": tensor.device.type,
            "pinned": tensor.device.type == "cpu" and torch.cuda.is_available() and tensor.is_pinned(),
            "offset": at,
            "size": size,
        }
        if at + size > into.numel():
            entry["offset"] = -1
        elif size:
            into[at : at + size].view(row.dtype).copy_(row)
            at += -(-size // ALIGNMENT) * ALIGNMENT
        entries.append(entry)
    return {"structure": structure, "tensors": entries}


def unpack_tensor(entry: Spec, source: torch.Tensor, device: str | None) -> torch.Tensor:
    """One tensor out of a flat uint8 buffer, as a fresh copy on ``device``; a view of the buffer when None.

    ValueError for a description that does not fit the buffer.
    """
    dtype, shape = dtype_of(entry["dtype"]), [int(n) for n in entry["shape"]]
    offset, size = int(entry["offset"]), int(entry["size"])
    if any(n < 0 for n in shape) or offset < 0 or size < 0 or offset + size > source.numel() or offset % ALIGNMENT:
        raise ValueError("a tensor's description does not fit the buffer")
    row = source[offset : offset + size].view(dtype) if size else torch.empty(0, dtype=dtype, device=source.device)
    if device is not None:
        row = row.to(device) if row.device.type != device else row.clone()
        if entry.get("pinned"):
            row = row.pin_memory()
    strides = entry["strides"]
    if not strides:
        return row.reshape(shape)
    return row.as_strided(shape, [int(s) for s in strides])


def unpack(description: Spec, source: torch.Tensor, device: str | None) -> Any:
    """The value behind a description; see ``unpack_tensor``."""
    return rebuild(description["structure"], [unpack_tensor(e, source, device) for e in description["tensors"]])
