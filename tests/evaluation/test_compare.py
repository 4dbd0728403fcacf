"""When outputs that hold random draws have the statistics of the reference."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stitchcuda.evaluation.compare import Budget, Statistics, distance, statistics_differ


def test_a_draw_that_decides_on_many_elements_may_differ_as_the_references_own_draws_do() -> None:
    torch.manual_seed(5)
    x = torch.rand(8, 4, 64, 64) + 1
    drawn = [Statistics.of(F.dropout2d(x, 0.5)) for _ in range(7)]
    for _ in range(50):
        assert statistics_differ(F.dropout2d(x, 0.5), F.dropout2d(x, 0.5), drawn) is None
    by_chance = [statistics_differ(F.dropout2d(x, 0.5), F.dropout2d(x, 0.5)) for _ in range(50)]
    assert any(by_chance)
    assert statistics_differ(3 * F.dropout2d(x, 0.5), F.dropout2d(x, 0.5), drawn) is not None


def test_elements_drawn_one_by_one_leave_little_to_chance() -> None:
    torch.manual_seed(5)
    x = torch.rand(64, 256) + 1
    drawn = [Statistics.of(F.dropout(x, 0.5)) for _ in range(7)]
    for _ in range(200):
        assert statistics_differ(F.dropout(x, 0.5), F.dropout(x, 0.5), drawn) is None
        assert statistics_differ(F.dropout(x, 0.1), F.dropout(x, 0.5), drawn) is not None
    nothing = statistics_differ(torch.full_like(x, torch.nan), x, drawn)
    assert nothing == "not finite"


def test_what_is_of_another_size_is_as_far_off_as_can_be() -> None:
    for right in (torch.rand(8), torch.arange(8), torch.rand(8) > 0.5, torch.rand(8, dtype=torch.complex64)):
        for size in (0, 4, 16):
            assert not Budget(1e300, 1e300).allows(distance(torch.zeros(size, dtype=right.dtype), right))
