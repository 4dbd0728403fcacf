"""Losses that reduce rows and then everything, in one kernel: built for real on cpu, emulated for cuda."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.full_reduction import FullReduction
from stitchcuda.recipes.row_losses import RowLosses
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated
from tests.recipes.support import assert_accurate, make_device, make_task, model_source, written

RECIPES = [RowLosses.name]
PAIR: list[tuple[int, ...]] = [(70, 132), (70, 132)]
CASES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "triplets": ("return F.triplet_margin_loss(a * 0.5, b, c)", [*PAIR, (70, 132)]),
    "triplets swapped": (
        "return F.triplet_margin_loss(a, b, c, margin=2.0, p=1, swap=True, reduction='sum')",
        [*PAIR, (70, 132)],
    ),
    "cosines with labels": (
        "return F.cosine_embedding_loss(a, b, torch.where(c > 0, 1.0, -1.0), margin=0.1)",
        [*PAIR, (70,)],
    ),
    "cosines": ("return torch.mean(1 - F.cosine_similarity(a, b, dim=1)) * 2", PAIR),
    "cosines of stacks": ("return (F.cosine_similarity(a, b, dim=-1) * c).mean()", [(7, 70, 33), (7, 70, 33), (70,)]),
    "distances": ("return (F.pairwise_distance(a, b) ** 2).sum(), F.pairwise_distance(a, b, p=1).mean()", PAIR),
    "divergence of softmaxes": (
        "return F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction='batchmean')",
        PAIR,
    ),
    "sums of rows": ("return ((a * b).sum(1) / 3 + c).relu().mean()", [*PAIR, (70,)]),
    "dimensions kept": (
        "return torch.log((a - a.mean(-1, keepdim=True)).exp().sum(-1, keepdim=True)).mean()",
        PAIR[:1],
    ),
    "entropy": ("return -(F.softmax(a, -1) * F.log_softmax(a, -1)).sum(-1).mean()", [(70, 4104)]),
    "the largest row": ("return torch.sqrt((a * a).sum(-1)).max()", [(9, 70, 33)]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_kernel_is_as_accurate_as_eager(cache: Path, name: str) -> None:
    task = make_task(model_source(*CASES[name]))
    program = written(task, RECIPES)
    assert program.manifest is not None
    assert_accurate(task, program, cache, floor=6e-7)


@pytest.mark.parametrize("name", CASES)
def test_the_emulated_kernel_computes_what_eager_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stitchcuda.recipes.emit_cuda.MANY_ROWS", 20)
    task = make_task(model_source(*CASES[name]), "cuda")
    program = emulated(task, RECIPES, tmp_path, monkeypatch, multiprocessors=1, calls=2)
    assert program.manifest is not None


def test_a_block_takes_several_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.full_cuda.RESIDENT", 64)
    forward = "return F.kl_div(F.log_softmax(a, -1), b.exp(), reduction='sum')"
    task = make_task(model_source(forward, [(7, 1500), (7, 1500)]), "cuda")
    program = emulated(task, RECIPES, tmp_path, monkeypatch, multiprocessors=1, calls=2)
    (text,) = [text for path, text in program.files.items() if path.endswith(".cu")]
    assert "block_reduce" in text
    assert "row += 1u" in text


@pytest.mark.parametrize(
    "forward",
    [
        "return F.triplet_margin_loss(a, b, a, reduction='none')",
        "return F.triplet_margin_loss(a, b, a, p=3.0)",
        "return a.sum(0).mean()",
        "return (a + b).mean()",
    ],
)
def test_other_losses_are_left_alone(forward: str) -> None:
    assert not rewrite(make_task(model_source(forward, PAIR)), make_device(), RECIPES)[1]


@pytest.mark.parametrize(("rows", "applies"), [(131, False), (132, True)])
def test_long_rows_that_do_not_fill_the_device_are_left_alone(rows: int, applies: bool) -> None:
    task = make_task(model_source("return (a * b).sum(1).mean()", [(rows, 70000), (rows, 70000)]), "cuda")
    assert bool(rewrite(task, make_device("cuda"), [*RECIPES, FullReduction.name])[1]) == applies
