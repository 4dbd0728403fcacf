"""Reductions over everything and losses of elements in one kernel: built for real on cpu, emulated for cuda."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stitchcuda.recipes.full_reduction import FullReduction
from stitchcuda.recipes.registry import all_recipes
from stitchcuda.recipes.write import rewrite
from stitchcuda.task.model import Precision
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import assert_accurate, loaded, make_device, make_task, model_source, twins, written

RECIPES = [FullReduction.name]
PAIR: list[tuple[int, ...]] = [(64, 130), (64, 130)]
CASES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "hinge": ("return torch.mean(torch.clamp(1 - a * b, min=0))", [(96, 1028), (1028,)]),
    "squares": ("return F.mse_loss(a, b), torch.mean((a - b) ** 2) * 3 + 1", PAIR),
    "absolute": ("return F.l1_loss(a, b, reduction='sum'), (a - b).norm(1), (a - b).abs().amax((0, 1))", PAIR),
    "huber": ("return F.smooth_l1_loss(a, b), F.smooth_l1_loss(a, b, beta=0.3), F.huber_loss(a, b, delta=0.7)", PAIR),
    "divergence": (
        "p, q = torch.sigmoid(a), torch.sigmoid(b)\nz = F.kl_div(torch.log(p), torch.relu(b), reduction='batchmean')\n"
        "return z, F.kl_div(p.log(), q.log(), log_target=True, reduction='sum')",
        PAIR,
    ),
    "logits": ("return F.binary_cross_entropy_with_logits(a, torch.sigmoid(b)), F.soft_margin_loss(a, b)", PAIR),
    "margins": (
        "y = torch.where(b > 0, 1.0, -1.0)\n"
        "return F.hinge_embedding_loss(a, y), F.margin_ranking_loss(a, b, y, margin=0.5), F.poisson_nll_loss(a, b)",
        PAIR,
    ),
    "extremes": ("return (a * b).max(), (a + b).min() - 1, (a * b).amin(), torch.norm(a + b)", PAIR),
    "dimensions kept": ("return (a * b).mean((0, 1), keepdim=True) * 0.5 + c", [*PAIR, (1, 1)]),
    "a value for all": ("return ((a - a.mean()) ** 2).sum() / 7 + c", [(300, 100), (1,), ()]),
    "strided and offset": ("return ((a.transpose(0, 1) - b[1:]) * c).sum()", [(3, 20, 12), (21, 3, 12), (3, 1)]),
    "odd": ("return (F.silu(a) * b).mean()", [(7, 13, 11), (13, 1)]),
    "broadcast along runs": ("return torch.sqrt(((a.expand(64, 100) - b) ** 2).sum())", [(64, 1), (64, 1)]),
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
    program = emulated(make_task(model_source(*CASES[name]), "cuda"), RECIPES, tmp_path, monkeypatch, calls=2)
    assert program.manifest is not None


def test_tiles_a_rest_and_several_tiles_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.full_cuda.RESIDENT", 256)
    task = make_task(model_source("return (a * b + 1).mean()", [(41, 1004), (1004,)]), "cuda")
    program = emulated(task, RECIPES, tmp_path, monkeypatch, multiprocessors=1, calls=2)
    (text,) = [text for path, text in program.files.items() if path.endswith(".cu")]
    assert "tile += 2" in text
    assert "rest" in text


def test_a_result_that_is_not_finite_is_the_same_as_eager(cache: Path) -> None:
    forward = "return (a * b).mean(), (a * b).max(), (b * 2).min(), F.mse_loss(a, b)"
    task = make_task(model_source(forward, [(64, 128), (64, 128)]))
    with loaded(written(task, RECIPES), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        for special in (float("inf"), float("nan")):
            a, b = reference.inputs(seed=2)
            a[3, 7] = special
            for mine, eager in zip(new(a, b.abs() + 0.1), model(a, b.abs() + 0.1), strict=True):
                torch.testing.assert_close(mine, eager, equal_nan=True)


def test_long_sums_stay_as_accurate_as_short_ones_and_are_the_same_each_time(cache: Path) -> None:
    task = make_task(model_source("return (a.abs() + b).sum()", [(1 << 21,), (1,)]))
    with loaded(written(task, RECIPES), task, cache) as module, torch.no_grad():
        _, new, reference = twins(module, task)
        a, b = reference.inputs(seed=1)
        first = new(a, b)
        threads = torch.get_num_threads()
        exact = float((a.abs() + b).double().sum())
        assert abs(float(first) - exact) <= 1e-7 * abs(exact)
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                assert torch.equal(new(a, b), first)
        finally:
            torch.set_num_threads(threads)


def test_one_pass_over_a_matrix_divides_once_for_a_pack(tmp_path: Path) -> None:
    task = make_task(model_source("return torch.mean(torch.clamp(1 - a * b, min=0))", [(96, 1028), (1028,)]), "cuda")
    _, gains = rewrite(task, gpu(), [recipe.name for recipe in all_recipes() if not recipe.last_resort])
    assert [gain.recipe for gain in gains if gain.recipe != "cuda_graph"] == ["full_reduction"]
    (text,) = [text for path, text in written(task, RECIPES).files.items() if path.endswith(".cu")]
    assert "own::Pack<float, 4>" in text
    assert "/" not in text.split("for (int j = 0")[1].split("}")[0]


@pytest.mark.parametrize("forward", ["return a.mean()", "return a.sum(1)", "return (a * b).argmax()", "return a.var()"])
def test_lone_and_partial_reductions_are_left_alone(forward: str) -> None:
    assert not rewrite(make_task(model_source(forward, PAIR)), make_device(), RECIPES)[1]


def test_what_others_read_is_written_by_them(cache: Path) -> None:
    task = make_task(model_source("x = a * b + 1\nreturn x, (x * 2 - a).mean() + x[0, 0]", PAIR))
    program = written(task, RECIPES)
    assert program.manifest is not None
    assert_accurate(task, program, cache, floor=6e-7)


def full_source(forward: str, shapes: list[tuple[int, ...]], precision: Precision = "fp32") -> str:
    """The CUDA text of a forward."""
    files = written(make_task(model_source(forward, shapes), "cuda", precision=precision), RECIPES).files
    (text,) = [text for path, text in files.items() if path.endswith(".cu")]
    return text


def test_elements_are_counted_in_64_bits_where_packs_fit_32() -> None:
    text = full_source("return (a * b).abs().sum()", [(2**33,)] * 2)
    assert "const uint32_t pack = " in text
    assert "const uint64_t column = static_cast<uint64_t>(pack % 2147483648u) * 4u;" in text


def test_packs_of_16_bits_load_as_many_bytes_ahead_as_others() -> None:
    single = full_source("return (a * b + c).abs().sum()", [(2**22,)] * 3)
    half = full_source("return (a * b + c).abs().sum()", [(2**22,)] * 3, "bf16")
    assert "ahead_in0[2]" in single
    assert "own::Pack<own::bfloat16, 8> ahead_in0[2]" in half
