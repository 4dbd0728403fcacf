"""Integers and booleans that rounding decides: an index of the largest of two equal numbers, a comparison with what is
as large. Only there may an answer be another than the reference's, and only one that noise, too, makes of it. Oracle
only.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from stitchcuda.evaluation import layout
from stitchcuda.evaluation.expectation import Expectation

DRAWS = 48
"""Draws of noise at most; of two equal numbers each is the larger in one of them, but for one case in 2^47."""

STRENGTHS = (4.0, 16.0, 64.0)
"""Multiples of the class's noise, in turn: another order of a sum moves a number by more than eager's rounding."""

MANY = 4
"""Where noise makes so many different values of an element, any is taken for one of them."""

STRAY = 0.02
"""Share of the differing elements that may be left unexplained."""

SAMPLE = 1 << 20
"""Of more differing elements than this, so many are looked at, drawn by chance."""

EARLY, HOPELESS = 8, 0.75
"""Draws after which it ends where more than this share of very many elements is unexplained: ties of ten numbers would
be explained better by then, and what is wrong everywhere is seen soon."""

VERY_MANY = 1 << 10
"""Elements, whose share after a few draws is not a matter of luck"""


def unexplained(
    expectation: Expectation,
    call: tuple[list[Any], int],
    at: int,
    value: torch.Tensor,
    right: tuple[torch.Tensor, torch.Tensor],
    noise: float,
    *,
    strict: bool = False,
) -> int:
    """How many elements of an output are neither what is wanted nor what the reference makes of inputs and weights with
    some noise; 0 for a few among many. ``call``: inputs and seed; ``at``: which of its outputs; ``right``: what is
    wanted of it, and eager's answer; ``strict``: each value must have been seen, however many there are.

    A draw whose output has another shape, since rounding decides that too, says nothing of any element.
    """
    want = right[0]
    value = value.to(want.device)
    places = (value != want).reshape(-1).nonzero().reshape(-1)
    total = places.numel()
    if total > SAMPLE:
        # A Program must not know which are looked at.
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
        places = places[torch.randint(total, (SAMPLE,), generator=generator).to(places.device)]
    known = Known(value.reshape(-1)[places], want.reshape(-1)[places])
    known.add(right[1].to(want.device).reshape(-1)[places])
    left = known.strange(strict=strict)
    for draw in range(DRAWS):
        if left <= STRAY * places.numel():
            return 0
        if draw >= EARLY and places.numel() >= VERY_MANY and left > HOPELESS * places.numel():
            break
        outputs, _ = expectation.noisy(*call, noise * STRENGTHS[draw % len(STRENGTHS)], draw)
        leaves = layout.leaves(outputs)
        if at >= len(leaves) or leaves[at].shape != want.shape:
            continue
        known.add(leaves[at].reshape(-1)[places.to(leaves[at].device)].to(want.device))
        left = known.strange(strict=strict)
    return max(1, round(left / places.numel() * total)) if left > STRAY * places.numel() else 0


class Known:
    """What was seen of some elements: whether what a Program ``got`` was among it, and up to ``MANY`` different values
    of each, which bounds the memory."""

    def __init__(self, got: torch.Tensor, right: torch.Tensor) -> None:
        self.got = got
        self.hit = got == right
        self.found = right.expand(MANY, -1).clone()
        self.kinds = torch.ones_like(right, dtype=torch.int64)

    def add(self, values: torch.Tensor) -> None:
        """One more value of each element."""
        self.hit |= values == self.got
        new = ((self.found != values).all(dim=0) & (self.kinds < MANY)).nonzero().reshape(-1)
        self.found[self.kinds[new], new] = values[new]
        self.kinds[new] += 1

    def strange(self, *, strict: bool) -> int:
        """How many elements are none of the values seen; unless ``strict``, of those that have few."""
        return int((~self.hit if strict else ~self.hit & (self.kinds < MANY)).sum())
