"""Products of two tensors on split float16: layouts, tails, triangles and numerics by emulation, and whole programs."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stitchcuda.recipes.split_gemm_kernel import Tiling, tiling
from stitchcuda.recipes.split_matmul import SplitMatmul
from stitchcuda.recipes.split_matmul_kernel import KEPT, name, notes, source, supported
from stitchcuda.recipes.write import rewrite, write_program
from stitchcuda.task.model import Precision
from tests.recipes.emulation import compiles, emulate, gpu, load_emulated, needs_nvcc
from tests.recipes.support import make_task, model_source

TILINGS = {
    "mma": Tiling(wgmma=False, stages=3, k_tile=32),
    "cluster": Tiling(wgmma=True, stages=3, cluster=2),
}


class Kernel:
    """One tiling's launcher, emulated."""

    def __init__(self, chosen: Tiling, folder: Path) -> None:
        self.tiling = chosen
        emulate({"matmul.cu": source(chosen)}, folder / "matmul.so")
        self.launcher = getattr(ctypes.CDLL(str(folder / "matmul.so")), name(chosen))

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, cut: int = 1, kept: str = "all", diagonal: int = 0
    ) -> torch.Tensor:
        """a [batches, m, k] by b [batches, k, n], read where they lie; a batch step of 0 shares a matrix."""
        (batches, m, k), n = a.shape, b.shape[2]
        out = torch.full((batches, m, n), float("nan"))
        own = [1 if t.stride(0) == 0 else batches for t in (a, b)]
        images = [
            torch.full((count * self.tiling.image_halfs(rows, k),), float("nan"), dtype=torch.float16)
            for count, rows in zip(own, (m, n), strict=True)
        ]
        noted = sum(notes(count, rows, k, self.tiling) for count, rows in zip(own, (m, n), strict=True))
        # What is not written must not be read: zeros would hide it, and past the end lies a guard.
        scratch = torch.full((noted + 1,), -7, dtype=torch.int32)
        partials = torch.full((cut, batches, m, n), float("nan")) if cut > 1 else None
        tensors = [
            None if t is None else ctypes.c_void_p(t.data_ptr()) for t in (a, b, out, *images, scratch, partials)
        ]
        numbers = (batches, m, n, k, *a.stride(), *b.stride(), cut, KEPT[kept], diagonal)
        assert self.launcher(*tensors, *map(ctypes.c_longlong, numbers), None) == 0
        assert scratch[-1] == -7
        return out


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """The emulated launcher of each tiling."""
    return {key: Kernel(chosen, tmp_path_factory.mktemp("matmul")) for key, chosen in TILINGS.items()}


def distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error by the norm."""
    return float((value.double() - exact).norm() / exact.norm())


def turned(value: torch.Tensor, across: bool) -> torch.Tensor:
    """The same values, with the last two dimensions the other way round in memory."""
    return value.mT.contiguous().mT if across else value


@pytest.mark.parametrize(
    ("key", "shape", "cut", "a_across", "b_across"),
    [
        ("mma", (1, 130, 132, 72), 1, False, False),
        ("mma", (1, 5, 131, 75), 1, True, True),
        ("mma", (2, 9, 6, 520), 1, False, False),
        ("cluster", (1, 130, 132, 200), 1, False, False),
        ("cluster", (2, 17, 12, 65), 1, False, True),
        ("cluster", (1, 9, 33, 600), 2, True, False),
        ("cluster", (1, 9, 18, 1030), 2, False, True),
    ],
)
def test_products_of_any_size_and_layout_are_as_accurate_as_float32(
    kernels: dict[str, Kernel], key: str, shape: tuple[int, int, int, int], cut: int, a_across: bool, b_across: bool
) -> None:
    batches, m, n, k = shape
    torch.manual_seed(m)
    a, b = torch.rand(batches, m, k), torch.randn(batches, k, n)
    got = kernels[key](turned(a, a_across), turned(b, b_across), cut)
    assert distance(got, a.double() @ b.double()) < 6e-7


@pytest.mark.parametrize("key", ["mma", "cluster"])
def test_a_matrix_is_shared_by_all_batches(kernels: dict[str, Kernel], key: str) -> None:
    torch.manual_seed(2)
    a, b = torch.randn(1, 6, 40).expand(3, 6, 40), torch.randn(3, 40, 7)
    assert distance(kernels[key](a, b), a.double() @ b.double()) < 6e-7
    assert distance(kernels[key](b.mT, a.mT), (a.double() @ b.double()).mT) < 6e-7


@pytest.mark.parametrize(
    ("key", "kept", "diagonal"),
    [("mma", "lower", 0), ("cluster", "lower", -140), ("cluster", "upper", 3)],
)
def test_triangles_of_triangular_operands(kernels: dict[str, Kernel], key: str, kept: str, diagonal: int) -> None:
    torch.manual_seed(3)
    take = torch.tril if kept == "lower" else torch.triu
    a, b = (take(torch.randn(1, 300, 300)) for _ in range(2))
    got = kernels[key](a, b, 1, kept, diagonal)
    exact = take(a.double() @ b.double(), diagonal)
    assert distance(got, exact) < 6e-7
    assert torch.equal(got[exact == 0], torch.zeros_like(got)[exact == 0])


def test_ranges_of_zeros_are_left_out_and_infinities_there_are_not(kernels: dict[str, Kernel]) -> None:
    torch.manual_seed(4)
    a, b = torch.randn(1, 140, 520), torch.randn(1, 520, 20)
    a[:, :128, 300:] = 0
    b[:, :100] = 0
    for cut in (1, 2):
        assert distance(kernels["cluster"](a, b, cut), a.double() @ b.double()) < 6e-7
    assert torch.equal(kernels["cluster"](torch.zeros_like(a), b), torch.zeros(1, 140, 20))
    b[0, 400, 3] = float("inf")
    got, eager = kernels["cluster"](a, b), a @ b
    assert torch.equal(got.isnan(), eager.isnan())
    torch.testing.assert_close(got, eager, equal_nan=True, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("key", ["mma", "cluster"])
def test_rows_of_any_magnitude_and_values_that_are_not_finite_give_what_float32_gives(
    kernels: dict[str, Kernel], key: str
) -> None:
    torch.manual_seed(0)
    a, b = torch.rand(1, 6, 136) * 0.1, torch.randn(1, 136, 20)
    a[0, 0, 100] = 1e4
    a[0, 1] *= 1e30
    a[0, 2] *= 1e-33
    a[0, 3] = 0
    b[0, 9, 3] = 3e3
    b[0, :, 4] = 0
    exact = a.double() @ b.double()
    got = kernels[key](a, b)
    for row in (0, 1, 2, 4, 5):
        assert distance(got[0, row], exact[0, row]) < 6e-7
    assert torch.equal(got[0, 3], torch.zeros(20))
    a[0, 0, 2], a[0, 1, 3], a[0, 1, 9], a[0, 2, 4] = float("inf"), float("inf"), float("-inf"), float("nan")
    b[0, 7, 5], b[0, 8, 6] = float("-inf"), float("nan")
    got, eager = kernels[key](a, b), a @ b
    assert torch.equal(got.isfinite(), eager.isfinite())
    torch.testing.assert_close(got, eager, equal_nan=True, rtol=2e-6, atol=1e-6)


SHAPES: list[tuple[int, ...]] = [(9, 20), (20, 13), (2, 9, 20), (2, 13, 20), (1, 2, 9, 20), (1, 2, 20, 13), (20, 20)]
FORMS = (
    "torch.mm(a, b)",
    "b.T @ a.t()",
    "torch.bmm(c, d.transpose(1, 2))",
    "c @ b",
    "torch.matmul(a, f)",
    "torch.matmul(e, f)",
    "torch.einsum('bijl,lk->bijk', e, b)",
    "torch.einsum('bik,bjk->bji', c, d)",
    "torch.einsum('bil,cdil->bcd', c, e)",
    "torch.tril(torch.matmul(g, g))",
    "(c @ d.mT).triu(2)",
    "a[2:8] @ b",
)
"""Products of inputs a, b, ... of these shapes."""


@pytest.fixture
def eager_to_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are rewritten too."""
    monkeypatch.setattr("stitchcuda.recipes.split_matmul.WORTH", 0.0)


@pytest.mark.usefixtures("eager_to_apply")
def test_every_form_of_a_product_gives_what_the_reference_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(model_source("return (" + ", ".join(FORMS) + ")", SHAPES), "cuda")
    program = write_program(task, gpu(8), [SplitMatmul.name])
    body = program.files["program.py"].split("def forward")[1]
    assert body.count("split_matmul_") >= len(FORMS)
    assert not re.findall(r"\b(mm|bmm|matmul|einsum|tril|triu)\(", body)
    module = load_emulated(program, tmp_path, monkeypatch)
    scope: dict[str, Any] = {}
    exec(task.source, scope)
    reference, own = scope["Model"](), module.ModelNew()
    inputs = scope["get_inputs"]()
    with torch.no_grad():
        got, expected = own(*inputs), reference(*inputs)
    for mine, eager in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("eager_to_apply")
@pytest.mark.parametrize(
    ("forward", "shapes"),
    [
        ("torch.einsum('bhqd,bhkd->bqhk', a, b)", [(2, 3, 4, 8), (2, 3, 5, 8)]),
        ("torch.einsum('ij,jk->k', a, b)", [(4, 5), (5, 6)]),
        ("torch.einsum('ii,ij->ij', a, b)", [(4, 4), (4, 5)]),
        ("a @ b", [(4, 5), (5,)]),
        ("a[:, :4] @ b", [(4, 5), (4, 6)]),
        ("a @ b", [(3, 4, 5), (1, 5, 6)]),
    ],
)
def test_products_that_single_steps_do_not_walk_are_left_alone(forward: str, shapes: list[tuple[int, ...]]) -> None:
    assert gains(f"return {forward}", shapes) == []


def gains(forward: str, shapes: list[tuple[int, ...]], precision: Precision = "fp32", arch: str = "sm_90") -> list[str]:
    """Recipes that found something to do in a task."""
    device = gpu()
    device = device.model_copy(update={"target": device.target.model_copy(update={"arch": arch})})
    task = make_task(model_source(forward, shapes), "cuda", precision=precision)
    return [gain.recipe for gain in rewrite(task, device, [SplitMatmul.name])[1]]


def test_it_applies_where_the_float32_pipe_binds_and_leaves_the_rest_to_the_library() -> None:
    large: list[tuple[int, ...]] = [(2048, 8192), (8192, 4096)]
    assert gains("return a @ b", large) == [SplitMatmul.name]
    assert gains("return a @ b", large, "tf32") == []
    assert gains("return a @ b", large, arch="sm_75") == []
    assert gains("return a @ b", large, arch="sm_120") == []
    assert gains("return a @ b", [(8, 8192), (8192, 4096)]) == []
    assert gains("return a @ b", [(4096, 32), (32, 4096)]) == []
    assert gains("return torch.bmm(a, b)", [(64, 64, 64), (64, 64, 64)]) == []


def test_sizes_that_the_grid_cannot_hold_are_refused() -> None:
    assert supported(128, 512, 2048, 1024)
    assert not supported(70000, 16, 16, 16)
    assert not supported(1, 16, 2**24, 16)


@needs_nvcc
@pytest.mark.parametrize(("arch", "memory"), [("90a", 232448), ("120a", 101376)])
def test_both_forms_of_the_kernels_compile_without_spills(arch: str, memory: int, tmp_path: Path) -> None:
    chosen = tiling(f"sm_{arch}", memory)
    assert chosen is not None
    report = compiles(source(chosen), tmp_path, [arch])[arch]
    assert set(re.findall(r"(\d+) bytes spill stores", report)) == {"0"}
    assert set(re.findall(r"(\d+) bytes stack frame", report)) == {"0"}
    assert "serializ" not in report
    assert "warning" not in report
