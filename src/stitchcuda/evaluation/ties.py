"""Integers and booleans that rounding decides: an index of the largest of two equal numbers, a comparison with what is
as large. Only there may an answer be another than the reference's, and only one that noise, too, makes of it. Oracle
only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from stitchcuda.evaluation.expectation import Expectation

DRAWS = 48
"""Draws of noise at most; of two equal numbers each is the larger in one of them, but for one case in 2^47."""

STRENGTHS = (4.0, 16.0, 64.0)
"""Multiples of the class's noise, in turn: another order of a sum moves a number by more than eager's rounding."""

MANY = 4
"""Where noise makes so many different values of an element, any is taken for one of them."""

STRAY = 0.02
"""Share of the differing elements that may be left unexplained."""


def unexplained(
    expectation: Expectation,
    call: tuple[list[Any], int],
    at: int,
    value: torch.Tensor,
    want: torch.Tensor,
    noise: float,
    *,
    strict: bool = False,
) -> int:
    """How many elements of an output are neither what is wanted nor what the reference makes of inputs and weights with
    some noise; 0 for a few among many. ``call``: inputs and seed; ``at``: which of its outputs; ``strict``: each value
    must have been seen, however many there are."""
    places = (value.to(want.device) != want).reshape(-1).nonzero().reshape(-1)
    got, right = value.to(want.device).reshape(-1)[places], want.reshape(-1)[places]
    seen = [right]
    left = places.numel()
    for draw in range(DRAWS):
        if left <= STRAY * places.numel():
            return 0
        outputs, _ = expectation.noisy(*call, noise * STRENGTHS[draw % len(STRENGTHS)], draw)
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        if at >= len(leaves) or leaves[at].shape != want.shape:
            return 0  # its shape, too, is decided by rounding
        seen.append(leaves[at].reshape(-1)[places.to(leaves[at].device)].to(right.device))
        known = torch.stack(seen).sort(dim=0).values
        kinds = (known[1:] != known[:-1]).sum(dim=0) + 1
        strange = (known != got).all(dim=0)
        left = int((strange if strict else strange & (kinds < MANY)).sum())
    return left if left > STRAY * places.numel() else 0
