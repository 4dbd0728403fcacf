"""Linear layers on split float16: layouts and numerics by emulation of the tensor cores, programs as a whole."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from stitchcuda.recipes.split_gemm_kernel import (
    ACTIVATIONS,
    TILE,
    Tiling,
    source,
    splits,
    supported,
    tiles,
    tiling,
)
from tests.recipes.emulation import compiles, emulate, needs_nvcc

TILINGS = {
    "mma": Tiling(wgmma=False, stages=3, k_tile=32),
    "mma wide": Tiling(wgmma=False, stages=3, k_tile=64, promote=128),
    "wgmma": Tiling(wgmma=True, stages=2),
    "cluster": Tiling(wgmma=True, stages=3, cluster=2, promote=128),
}


class Kernels:
    """One tiling's launchers, emulated."""

    def __init__(self, chosen: Tiling, folder: Path) -> None:
        self.tiling = chosen
        emulate({"split.cu": source(chosen)}, folder / "split.so")
        library = ctypes.CDLL(str(folder / "split.so"))
        self.pack, self.linear = getattr(library, chosen.pack), getattr(library, chosen.linear)

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str = "none",
        parts: int = 1,
    ) -> torch.Tensor:
        """``activation(x · wᵀ + bias)``."""
        (m, k), n = x.shape, w.shape[0]
        image = torch.empty(self.tiling.image_halfs(n, k), dtype=torch.float16)
        exponents = torch.empty(tiles(n) * TILE, dtype=torch.int32)
        assert self.pack(*_c(w, image, exponents, n, k, None)) == 0
        x_image = torch.empty(self.tiling.image_halfs(m, k), dtype=torch.float16)
        x_rows = torch.empty(2 * tiles(m) * TILE, dtype=torch.int32)
        out = torch.full((m, n), float("nan"))
        partials = torch.empty(parts, m, n) if parts > 1 else None
        given = (x, image, exponents, bias, out, x_image, x_rows, partials)
        code = ACTIVATIONS[activation]
        assert self.linear(*_c(*given, m, n, k, parts, code, None)) == 0
        return out


def _c(*values: object) -> list[object]:
    """ctypes arguments of tensors and numbers."""
    found: list[object] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(ctypes.c_void_p(value.data_ptr()))
        else:
            found.append(ctypes.c_longlong(value) if isinstance(value, int) else ctypes.c_void_p(None))
    return found


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernels]:
    """The emulated launchers of each tiling."""
    return {name: Kernels(chosen, tmp_path_factory.mktemp("split")) for name, chosen in TILINGS.items()}


def distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error by the norm."""
    return float((value.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", TILINGS)
@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [(128, 128, 200, 1), (130, 140, 8, 1), (17, 130, 512, 3)],
)
def test_products_of_any_size_are_as_accurate_as_float32(
    kernels: dict[str, Kernels], name: str, m: int, n: int, k: int, parts: int
) -> None:
    torch.manual_seed(m)
    x, w, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    exact = x.double() @ w.double().T + bias.double()
    got = kernels[name](x, w, bias, parts=parts)
    assert distance(got, exact) < 6e-7


@pytest.mark.parametrize("name", ["mma", "wgmma"])
def test_rows_of_any_magnitude_and_values_that_are_not_finite_give_what_float32_gives(
    kernels: dict[str, Kernels], name: str
) -> None:
    torch.manual_seed(0)
    x, w = torch.rand(6, 136) * 0.1, torch.randn(20, 136)
    x[0, 100] = 1e4
    x[1] *= 1e30
    x[2] *= 1e-33
    x[3] = 0
    w[3, 9] = 3e3
    w[4] = 0
    exact = x.double() @ w.double().T
    got = kernels[name](x, w)
    for row in (0, 1, 2, 4, 5):
        assert distance(got[row], exact[row]) < 6e-7
    assert torch.equal(got[3], torch.zeros(20))
    x[0, 2], x[1, 3], x[1, 9], x[2, 4] = float("inf"), float("inf"), float("-inf"), float("nan")
    eager = torch.nn.functional.linear(x, w).relu()
    got = kernels[name](x, w, activation="relu")
    assert torch.equal(got.isfinite(), eager.isfinite())
    torch.testing.assert_close(got, eager, equal_nan=True, rtol=2e-6, atol=1e-6)
