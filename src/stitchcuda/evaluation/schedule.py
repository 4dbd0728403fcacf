"""Which of a row of calls get something special: at places that no Program can know, yet often enough that no cheat
gets through by luck. Pure; who asks is in ``calls``."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

RELATED: Final = ("permuted", "probe")
"""Families of inputs made from those of the call before: the same rows in another order, and the same but for a few
elements. A cache keyed on sums, samples or addresses of its input answers them with the call before's output."""


class Strata:
    """Yes for a share of the calls, one after the other.

    Calls fall into stretches of about 1 / min(share, 1 - share), and the rarer answer comes once in each, at random:
    among any 2 / min(share, 1 - share) calls in a row there are both. Independent draws would leave out the rarer one
    of 0.3 over a dozen calls in one evaluation of a hundred.
    """

    def __init__(self, share: float) -> None:
        self.usual = share >= 0.5
        self.rare = min(share, 1 - share)
        self._calls = self._end = self._stretch = 0
        self._chosen = -1

    def __call__(self) -> bool:
        """The next call's answer."""
        if self.rare <= 0:
            return self.usual
        if self._calls == self._end:
            self._stretch += 1
            self._end = math.ceil(self._stretch / self.rare)
            self._chosen = random.randrange(self._calls, self._end)
        here = self._calls == self._chosen
        self._calls += 1
        return self.usual != here


def related(count: int, cases: int, reweighed: int, kinds: Sequence[str]) -> dict[int, str]:
    """Where inputs are made from those of the call before: place among ``count`` timed calls and kind, at random, each
    kind once (the last alone where there is room for one only).

    A call has one before it that it can be made from when it is not the first on its case (see ``case_at``) and
    weights have not changed (at ``reweighed``) since.
    """
    places = [at for at in range(1, count) if at != reweighed and follows(at, cases)]
    chosen = sorted(random.sample(places, min(len(places), len(kinds))))
    return dict(zip(chosen, kinds[len(kinds) - len(chosen) :], strict=True))


def chosen_for_each(count: int, cases: int, made: Mapping[int, str], least: int) -> set[int]:
    """Of ``count`` timed calls ``least`` of each input case, at random, none of them among those ``made`` from others;
    fewer where there are not so many."""
    chosen: set[int] = set()
    for case in range(cases):
        places = [at for at in range(count) if case_at(at, cases) == case and at not in made]
        chosen.update(random.sample(places, min(len(places), least)))
    return chosen


def case_at(index: int, cases: int) -> int:
    """Which input case a timed call gets: each twice in a row where there are several, so that the second can be made
    from the first."""
    return (index // 2) % cases if cases > 1 else 0


def follows(index: int, cases: int) -> bool:
    """Whether the timed call before has the same input case."""
    return index > 0 and case_at(index - 1, cases) == case_at(index, cases)
