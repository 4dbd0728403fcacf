"""Is a Program as accurate in the calls that are timed as in the first, which everybody knows are checked? Its error
against fp64 on one distribution of inputs hardly varies from call to call; one that works in lower precision where only
the clock looks may stay within the budget and errs many times more all the same. Oracle only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import torch

from stitchcuda.evaluation.judging import Round

RISE = 4.0
"""How many times more than the worst of its first calls a Program errs in its timed ones before that counts: another
order of a sum, which a Program may choose when it has tried several, changes an error by less or leaves it small."""

SHARE = 0.4
"""Of the error budget, below which nothing counts: what is that small is rounding of the class itself."""

LEAST = 2
"""Timed calls that were compared in full"""


ELEMENTS = 200
"""Of an output at least: the error of a few is a matter of luck, which of integers are ties that fall otherwise, too"""


@dataclass
class Errors:
    """Of one output on one distribution: relative norms against fp64, and the largest budget."""

    first: list[float] = field(default_factory=list)
    timed: list[float] = field(default_factory=list)
    budget: float = 0.0


class Levels:
    """The errors of one session's calls."""

    def __init__(self) -> None:
        self.errors: dict[tuple[str, str], Errors] = {}

    def add(self, this: Round, name: str, output: torch.Tensor, error: float, budget: float, *, timed: bool) -> None:
        """Take in what a call that was compared with fp64 showed of one ``output``, where its inputs tell precision
        classes apart and its norm averages over many elements."""
        real = output.is_floating_point() or output.is_complex()
        if not this.strict or not real or output.numel() < ELEMENTS:
            return
        # Rows in another order are the same distribution.
        known = self.errors.setdefault((f"{this.case}/{this.values}", name), Errors())
        (known.timed if timed else known.first).append(error)
        known.budget = max(known.budget, budget)

    def risen(self) -> str:
        """In a sentence, which output errs much more in timed calls; empty when none does."""
        for (_, name), known in self.errors.items():
            if not known.first or len(known.timed) < LEAST:
                continue
            before, now = max(known.first), median(known.timed)
            if now > RISE * before and now > SHARE * known.budget:
                return (
                    f"output {name} is off by {now:.1e} in relative norm in timed calls, and by {before:.1e} at most "
                    "in the first calls, on inputs of the same kind: they are not computed alike"
                )
        return ""
