"""Input families: what becomes of a Task's own inputs so that an answer which only fits their distribution fails. Pure
functions over tensors, used by the oracle; which family a call gets, and whether the reference stands it, is decided
there.

Every family keeps inputs valid: integers, masks, indices, probabilities, unit vectors, sorted tables, the zeros of
structured matrices and symmetry are recognised from the values and left as they are, or moved as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from stitchcuda.evaluation.schedule import RELATED

Family = Literal["signed", "offset", "spikes", "sparse", "permuted", "probe"]

VALUES: tuple[Family, ...] = ("signed", "offset", "spikes", "sparse")
"""Families that change the values of real inputs, from fresh draws of the Task's own."""

FAMILIES: tuple[Family, ...] = (*VALUES, *RELATED)

Nature = Literal["real", "values", "rows", "fixed"]
"""What may be done to an input: 'real' takes any values; 'values' only those that occur in it already (integers,
booleans, 0/1 and other whole floats, probabilities); 'rows' may only move as whole rows of the last dimension
(distributions, unit vectors); 'fixed' stays (scalars, sorted tables, tensors with NaN or infinities, expanded ones)."""

UNIT_WORDS = ("binary_cross_entropy", "BCELoss", "bernoulli", "multinomial", "poisson")
"""In a source: values between 0 and 1 are probabilities, and others would end a CUDA context by an assertion."""

INDEX_WORDS = (".long()", ".int()", "torch.long)", "torch.int64)", "torch.int32)", "one_hot")
"""In a source: floats may become indices."""

SAMPLE = 1 << 20
"""Elements looked at to tell an input's nature and scale."""

PIECE = 1 << 26
"""Elements changed at once, so that temporaries stay small."""

PLANTED = 4
"""Elements of each input that ``plant`` changes."""

FEW_ROWS = 8
"""Integers with fewer rows than this may have rows of different meaning, such as sources and targets of edges."""

SPIKES = 16
SPIKE = 1000.0
"""Number and size (standard deviations) of the spikes in the family of that name."""


@dataclass(frozen=True)
class Input:
    """One tensor of the inputs, as far as families care."""

    nature: Nature
    mean: float = 0.0
    spread: float = 0.0
    """standard deviation; at least a hundredth of the largest magnitude"""
    zeros: bool = False
    """exact zeros are structure (a triangle, a band, a mask) and stay"""
    symmetric: bool = False


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)]


def look(tensor: torch.Tensor, source: str) -> Input:
    """The nature of one input tensor of the Task with this ``source``."""
    expanded = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    if tensor.numel() <= 1 or tensor.is_complex() or expanded:
        return Input("fixed")
    seen = _sample(tensor)
    if not tensor.is_floating_point():
        wide = tensor.dim() > 1 or tensor.dtype == torch.bool
        return Input("values") if wide or not bool((seen[1:] >= seen[:-1]).all()) else Input("fixed")
    seen = seen.float()
    if not bool(torch.isfinite(seen).all()):
        return Input("fixed")
    if tensor.dim() == 1 and bool((seen[1:] >= seen[:-1]).all()):
        return Input("fixed")
    if bool((seen == seen.round()).all()):
        return Input("values")
    if _normalised(tensor):
        return Input("rows")
    unit = float(seen.min()) >= 0 and float(seen.max()) <= 1
    if any(word in source for word in INDEX_WORDS) or (unit and any(word in source for word in UNIT_WORDS)):
        return Input("values")
    spread = max(float(seen.std()), 1e-2 * float(seen.abs().max()))
    square = tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1
    symmetric = square and torch.equal(tensor, tensor.mT)
    return Input("real", float(seen.mean()), spread, float((seen == 0).float().mean()) > 0.02, symmetric)


def _normalised(tensor: torch.Tensor) -> bool:
    """Whether the rows of the last dimension are distributions, their logarithms, or unit vectors."""
    if tensor.shape[-1] < 2:
        return False
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    rows = rows[:: max(1, rows.shape[0] // 64)].float()
    slack = 1e-3 if tensor.dtype == torch.float32 else 2e-2
    positive = bool((rows >= 0).all())
    for norms in (rows.sum(-1) if positive else None, rows.logsumexp(-1).exp(), rows.norm(dim=-1)):
        if norms is not None and bool(((norms - 1).abs() < slack).all()):
            return True
    return False


def generator_for(seed: int, at: int, device: torch.device) -> torch.Generator:
    """A generator of its own for the ``at``-th input."""
    return torch.Generator(device).manual_seed((seed + 7919 * at) % (1 << 62))


@torch.no_grad()
def change(family: Family, tensors: Sequence[torch.Tensor], looks: Sequence[Input], seed: int) -> bool:
    """Turn fresh inputs into a family of ``VALUES``, in place; False when none of them is real."""
    real = False
    for at, (tensor, kind) in enumerate(zip(tensors, looks, strict=True)):
        if kind.nature != "real":
            continue
        real = True
        generator = generator_for(seed, at, tensor.device)
        shift = float(torch.empty(1).uniform_(2, 5, generator=generator_for(seed, at, torch.device("cpu"))))
        rows = max(1, PIECE // max(1, tensor.numel() // tensor.shape[0]))
        for start in range(0, tensor.shape[0], rows):
            piece = tensor[start : start + rows]
            kept = piece == 0 if kind.zeros else None
            piece.copy_(_changed(family, piece.float(), kind, generator, shift * (-1) ** (seed + at)))
            if kept is not None:
                piece.masked_fill_(kept, 0)
        if family == "spikes":
            _spike(tensor, kind, generator)
        elif family == "sparse" and tensor.dim() > 1 and tensor.shape[-1] >= 8:
            width = tensor.shape[-1] // 4
            tensor.narrow(-1, seed % (tensor.shape[-1] - width), width).zero_()
        if kind.symmetric:
            tensor.copy_(tensor.triu() + tensor.triu(1).mT)
    return real


def _changed(
    family: Family, values: torch.Tensor, kind: Input, generator: torch.Generator, shift: float
) -> torch.Tensor:
    if family == "offset":
        return values.add_(shift * kind.spread)
    if family == "sparse":
        drawn = torch.rand(values.shape, generator=generator, device=values.device)
        return values.mul_(drawn < 0.1)
    signs = torch.randint(0, 2, values.shape, generator=generator, device=values.device, dtype=torch.int8)
    values.sub_(kind.mean).mul_(signs.mul_(2).sub_(1))
    if family == "spikes":
        values.mul_(torch.randn(values.shape, generator=generator, device=values.device).exp_())
    return values


def _places(tensor: torch.Tensor, count: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    flat = torch.randint(0, tensor.numel(), (count,), generator=generator, device=generator.device)
    return torch.unravel_index(flat.to(tensor.device), tensor.shape)


def _spike(tensor: torch.Tensor, kind: Input, generator: torch.Generator) -> None:
    at = _places(tensor, min(SPIKES, max(1, tensor.numel() // 64)), generator)
    heights = torch.randn(at[0].numel(), generator=generator, device=generator.device).to(tensor.device)
    heights = heights.sign() * SPIKE * kind.spread
    tensor[at] = torch.where(tensor[at] == 0, 0, heights).to(tensor.dtype) if kind.zeros else heights.to(tensor.dtype)


@torch.no_grad()
def permute(tensors: Sequence[torch.Tensor], looks: Sequence[Input], seed: int) -> bool:
    """Reorder the rows of the inputs in place, those of one length alike; False when no input may be reordered."""
    if any(kind.nature == "fixed" and tensor.numel() > 1 for tensor, kind in zip(tensors, looks, strict=True)):
        return False
    orders: dict[int, torch.Tensor] = {}
    batches = {tensor.shape[0] for tensor, kind in zip(tensors, looks, strict=True) if kind.nature == "real"}
    for tensor, kind in zip(tensors, looks, strict=True):
        dims = range(tensor.dim() - 1 if kind.nature == "rows" else tensor.dim())
        dim = next((d for d in dims if tensor.shape[d] > 1), None)
        if kind.nature == "values" and tensor.shape[0] < FEW_ROWS and tensor.shape[0] not in batches:
            dim = _longest(tensor)
        if dim is None or kind.zeros or kind.symmetric or kind.nature == "fixed":
            continue
        size = tensor.shape[dim]
        if size not in orders:
            order = torch.randperm(size, generator=torch.Generator().manual_seed((seed + size) % (1 << 62)))
            orders[size] = order.roll(1) if torch.equal(order, torch.arange(size)) else order
        tensor.copy_(tensor.index_select(dim, orders[size].to(tensor.device)))
    return bool(orders)


@torch.no_grad()
def plant(
    tensors: Sequence[torch.Tensor], looks: Sequence[Input], seed: int, magnitude: float, *, others: bool = True
) -> bool:
    """Change a few elements of each input in place: real ones by ``magnitude`` standard deviations, others (unless
    told not to) to values or rows that occur in the input already. The same seed changes the same places. False when
    nothing may change.
    """
    done = False
    for at, (tensor, kind) in enumerate(zip(tensors, looks, strict=True)):
        if kind.nature == "fixed" or (kind.nature != "real" and not others):
            continue
        generator = generator_for(seed, at, torch.device("cpu"))
        if kind.nature == "rows":
            count = tensor.numel() // tensor.shape[-1]
            if count < 2:
                continue
            rows = torch.randint(0, count, (2,), generator=generator)
            here, there = (torch.unravel_index(row, tensor.shape[:-1]) for row in rows)
            tensor[here] = tensor[there].clone()
        else:
            place = _places(tensor, PLANTED, generator)
            if kind.nature == "values":
                tensor[place] = _other(tensor, place, generator)
            else:
                signs = torch.randint(0, 2, (PLANTED,), generator=generator).to(tensor.device) * 2 - 1
                added = tensor[place].float() + signs * (magnitude * kind.spread)
                new = torch.where(tensor[place] == 0, 0.0, added) if kind.zeros else added
                tensor[place] = new.to(tensor.dtype)
                if kind.symmetric:
                    tensor.mT[place] = new.to(tensor.dtype)
        done = True
    return done


def _other(tensor: torch.Tensor, place: tuple[torch.Tensor, ...], generator: torch.Generator) -> torch.Tensor:
    """Values of the tensor that differ from those at ``place`` where that can be found in a few draws; each from the
    same row along the longest dimension, since rows of indices may point into different tables."""
    new, dim = tensor[place].clone(), _longest(tensor)
    for _ in range(8):
        same = new == tensor[place]
        if not bool(same.any()):
            break
        drawn = torch.randint(0, tensor.shape[dim], (place[0].numel(),), generator=generator).to(tensor.device)
        new = torch.where(same, tensor[(*place[:dim], drawn, *place[dim + 1 :])], new)
    return new


def _longest(tensor: torch.Tensor) -> int:
    return max(range(tensor.dim()), key=lambda d: tensor.shape[d])


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors inside the inputs, in a fixed order."""
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
