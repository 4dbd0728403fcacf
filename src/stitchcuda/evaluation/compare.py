"""How far two tensors are apart, whether that is within the error budget, and what a mismatch looks like. Runs in the
oracle; knows nothing of processes or Programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

CHUNK = 1 << 24
"""Elements compared at once, so that float64 copies of large outputs stay small."""

TINY = 1e-30


@dataclass(frozen=True)
class Distance:
    """Over the elements where the reference is finite."""

    relative: float
    """||value - reference|| / ||reference||; infinite when only the reference is zero"""
    max_abs: float
    scale: float
    """largest |reference|"""
    same_specials: bool
    """NaN and infinities stand at the same places, with the same signs"""


ZERO = Distance(0.0, 0.0, 0.0, True)
FARTHEST = Distance(math.inf, math.inf, 0.0, False)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def distance(value: torch.Tensor, reference: torch.Tensor) -> Distance:
    """Distance of ``value`` from ``reference``, both of one shape (else ``FARTHEST``), computed in float64.

    For integers and booleans it is the share of elements that differ, and nothing else.
    """
    left, right = _rows(value), _rows(reference)
    if left.numel() != right.numel():
        return FARTHEST
    if not right.is_floating_point():
        return _disagreement(left, right)
    # Of each chunk: norms of the difference and of the reference, and both's largest elements.
    parts, same = [], True
    for at in range(0, left.numel(), CHUNK):
        b = right[at : at + CHUNK].to(torch.float64)
        a = left[at : at + CHUNK].to(b.device)
        if a.element_size() == 1:
            a = a.to(torch.float64)  # no arithmetic mixes those with others
        part = _norms(a, b)
        if not all(map(math.isfinite, part)):
            a = a.to(torch.float64)
            finite = torch.isfinite(b)
            agree = torch.where(finite, torch.isfinite(a), (a == b) | (a.isnan() & b.isnan()))
            same = same and bool(agree.all())
            both = finite & torch.isfinite(a)
            part = _norms(a[both], b[both])
        parts.append(part)
    difference, norm = (math.hypot(*(part[at] for part in parts)) for at in (0, 1))
    largest, scale = (max((part[at] for part in parts), default=0.0) for at in (2, 3))
    relative = difference / norm if norm > 0 else (0.0 if difference == 0 else math.inf)
    return Distance(relative, largest, scale, same)


def _norms(a: torch.Tensor, b: torch.Tensor) -> list[float]:
    """||a - b||, ||b||, and the largest |a - b| and |b|, in the precision of ``b``. Each reads memory once, and a GPU
    is waited for once; what is not finite shows in at least one of them."""
    if b.numel() == 0:
        return [0.0] * 4
    difference, norm = torch.sub(a, b), torch.linalg.vector_norm
    return torch.stack([norm(difference), norm(b), norm(difference, math.inf), norm(b, math.inf)]).tolist()


def _disagreement(left: torch.Tensor, right: torch.Tensor) -> Distance:
    differ = 0
    for at in range(0, right.numel(), CHUNK):
        there = right[at : at + CHUNK]
        differ += int((left[at : at + CHUNK].to(there.device) != there).sum())
    return Distance(differ / max(1, right.numel()), 0.0, 0.0, True)


@dataclass(frozen=True)
class Budget:
    """What one output may be off by."""

    relative: float
    max_abs: float

    def twice(self) -> Budget:
        """For comparison with eager, which may be off in the other direction."""
        return Budget(2 * self.relative, 2 * self.max_abs)

    def stretched(self, ratio: float) -> Budget:
        """For a reference whose elements are larger by ``ratio`` than those that the budget was made for."""
        return Budget(self.relative, self.max_abs * ratio)

    def widest(self, other: Budget | None) -> Budget:
        """The wider of two, field by field."""
        if other is None:
            return self
        return Budget(max(self.relative, other.relative), max(self.max_abs, other.max_abs))

    def allows(self, distance: Distance) -> bool:
        """Norm, largest element and special values."""
        return distance.same_specials and distance.relative <= self.relative and distance.max_abs <= self.max_abs


def budget(tolerance: dict[str, float], eager: Distance, moved: Distance) -> Budget:
    """The budget from eager's own distance to fp64 and from how far eager moves under noise (the conditioning)."""
    factor, element_factor = tolerance["factor"], tolerance["element_factor"]
    relative = max(tolerance["floor"], factor * eager.relative, factor * moved.relative)
    largest = tolerance["element_floor"] * eager.scale + element_factor * max(eager.max_abs, moved.max_abs)
    return Budget(relative if math.isfinite(relative) else 1e300, max(largest, TINY))


def tie_budget(tolerance: dict[str, float], eager: Distance, moved: Distance) -> Budget:
    """The budget of integers and booleans, as a share of elements: where eager agrees with fp64 and small noise changes
    nothing, every element must be equal; ties that rounding decides may fall as often otherwise as noise makes them."""
    return Budget(min(1.0, tolerance["factor"] * max(eager.relative, moved.relative)), 0.0)


def mismatch(got: torch.Tensor, expected: torch.Tensor, allowed: float) -> str:
    """Where an output is wrong: the first bad element, how many, and in what pattern."""
    if got.numel() == 0:
        return "empty"
    if got.is_complex():
        got, expected = torch.view_as_real(got.resolve_conj()), torch.view_as_real(expected.resolve_conj())
    a, b = got.to(torch.float64), expected.to(got.device, torch.float64)
    bad = ~((a - b).abs() <= allowed) & ~((a == b) | (a.isnan() & b.isnan()))
    count, total = int(bad.sum()), bad.numel()
    if count == 0:
        flat = int(torch.nan_to_num((a - b).abs()).argmax())
        start = "largest difference"
    else:
        flat = int(bad.reshape(-1).to(torch.uint8).argmax())
        start = "first mismatch"
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat), a.shape)] if a.dim() else []
    text = f"{start} at {index}: got {float(a.reshape(-1)[flat]):.9g}, expected {float(b.reshape(-1)[flat]):.9g}"
    if count:
        text += f"; {count} of {total} elements off ({_pattern(a, b, bad)})"
    return text


def _pattern(got: torch.Tensor, expected: torch.Tensor, bad: torch.Tensor) -> str:
    count, total = int(bad.sum()), bad.numel()
    nans = int((got.isnan() & ~expected.isnan()).sum())
    if nans:
        return f"{nans} of them NaN"
    if not bool(got.any()):
        return "the output is all zeros"
    if count >= 0.9 * total:
        return "nearly everywhere"
    flat = bad.reshape(-1).nonzero().reshape(-1)
    first, last = int(flat[0]), int(flat[-1])
    if last == total - 1 and count >= 0.9 * (total - first):
        return f"only the tail, from flat index {first} on"
    for dim in range(bad.dim()):
        others = [d for d in range(bad.dim()) if d != dim]
        hit = (bad.any(dim=others) if others else bad).nonzero().reshape(-1)
        if 0 < hit.numel() < bad.shape[dim]:
            low, high = int(hit[0]), int(hit[-1])
            if high - low + 1 == hit.numel():
                return f"only indices {low} to {high} of dimension {dim}"
            steps = set((hit[1:] - hit[:-1]).tolist())
            if len(steps) == 1:
                step = steps.pop()
                return f"indices {low}, {low + step}, {low + 2 * step}, ... of dimension {dim}"
    return "scattered"


@dataclass(frozen=True)
class Statistics:
    """Of one output that holds random draws, over all its elements."""

    mean: float
    spread: float
    zeros: float
    """share of elements"""
    finite: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Statistics:
        """Those of a tensor."""
        values = tensor.to(torch.float64)
        spread = float(values.std()) if values.numel() > 1 else 0.0
        zeros = float((values == 0).double().mean()) if values.numel() else 0.0
        mean = float(values.mean()) if values.numel() else 0.0
        return cls(mean, spread, zeros, bool(torch.isfinite(values).all()))


BETWEEN = 6.0
"""How many times the range between a few draws of the reference another draw may be off: of seven draws about sixteen
standard deviations, where two draws are apart by the root of two of them."""


def statistics_differ(got: torch.Tensor, expected: torch.Tensor, drawn: Sequence[Statistics] = ()) -> str | None:
    """For outputs with draws of their own: whether mean, spread or share of zeros differ more than chance allows.

    Chance is what elements drawn one by one would make of it, or, where one draw decides on many (a whole channel that
    is dropped), how far some of the reference's draws on one input are apart (``drawn``).
    """
    this, that, count = Statistics.of(got), Statistics.of(expected), max(expected.numel(), 1)
    if that.finite and not this.finite:
        return "not finite"
    slack = 6 / math.sqrt(count) + 1e-3
    spread = max(that.spread, 1e-12)
    for name, words, least in (
        ("mean", "mean", 1.5 * slack * spread),
        ("spread", "standard deviation", 3 * slack * spread if count > 1 else math.inf),
        ("zeros", "share of zeros", slack),
    ):
        values = [getattr(one, name) for one in drawn] or [0.0]
        own, about = getattr(this, name), getattr(that, name)
        if abs(own - about) > max(least, BETWEEN * (max(values) - min(values))):
            return f"{words} {own:.6g}, expected about {about:.6g}"
    return None


def structure_error(expected: dict[str, Any], got: dict[str, Any], wanted: list[Any], found: list[Any], at: str) -> str:
    """What differs between two described values, leaf by leaf; empty when types, shapes, dtypes and devices agree."""
    if expected["kind"] != got.get("kind"):
        return f"output {at} is {_noun(got, found)}, expected {_noun(expected, wanted)}"
    kind = expected["kind"]
    if kind == "tensor":
        want, have = wanted[expected["at"]], found[got["at"]]
        for field, name in (("type", "type"), ("shape", "shape"), ("dtype", "dtype"), ("device", "device")):
            if want[field] != have.get(field):
                return f"output {at} has {name} {have.get(field)}, expected {want[field]}"
        return ""
    if kind in ("list", "tuple", "dict"):
        if kind == "dict" and expected["keys"] != got.get("keys"):
            return f"output {at} has other keys than the reference's"
        if len(expected["items"]) != len(got["items"]):
            return f"output {at} has {len(got['items'])} items, expected {len(expected['items'])}"
        for i, (one, two) in enumerate(zip(expected["items"], got["items"], strict=True)):
            name = str(expected["keys"][i].get("value")) if kind == "dict" else str(i)
            error = structure_error(one, two, wanted, found, name if at == "0" else f"{at}.{name}")
            if error:
                return error
        return ""
    if kind == "float":
        want_value, have_value = float.fromhex(expected["value"]), float.fromhex(got["value"])
        if math.isclose(want_value, have_value, rel_tol=1e-5, abs_tol=1e-12) or want_value != want_value:
            return ""
        return f"output {at} is {have_value!r}, expected {want_value!r}"
    if kind == "opaque":
        return "" if expected["type"] == got.get("type") else f"output {at} is a {got.get('type')}"
    return "" if expected == got else f"output {at} is {got.get('value')!r}, expected {expected.get('value')!r}"


def _noun(spec: dict[str, Any], tensors: list[Any]) -> str:
    kind = spec.get("kind")
    if kind == "tensor":
        entry = tensors[spec["at"]]
        return f"a tensor {entry['shape']}"
    return f"an object of type {spec.get('type')}" if kind == "opaque" else f"a {kind}"
