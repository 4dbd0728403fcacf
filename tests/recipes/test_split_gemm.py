"""Linear layers on split float16: layouts and numerics by emulation of the tensor cores, programs as a whole."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stitchcuda.recipes.split_gemm import SplitGemm
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
from stitchcuda.recipes.write import rewrite, write_program
from tests.recipes.emulation import compiles, emulate, gpu, load_emulated, needs_nvcc, task_of

TILINGS = {
    "mma": Tiling(wgmma=False, stages=3, k_tile=32),
    "mma wide": Tiling(wgmma=False, stages=3, k_tile=64, promote=128),
    "wgmma": Tiling(wgmma=True, stages=2),
    "wgmma narrow": Tiling(wgmma=True, stages=3, k_tile=32, round=4, stream=True),
    "cluster": Tiling(wgmma=True, stages=3, cluster=2, round=2),
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


TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 136)
        self.second = nn.Linear(136, 72, bias=False)

    def forward(self, x):
        return torch.tanh(self.second(self.first(x).{activation}()))

def get_inputs():
    return [torch.randn({shape}, 64)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_program_computes_what_the_reference_does_and_splits_its_weights_once(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stitchcuda.recipes.split_gemm.WORTH", 0.0)
    text = TASK.format(shape="2, 3", activation="relu")
    device = gpu(8)
    device = device.model_copy(update={"target": device.target.model_copy(update={"arch": arch})})
    program = write_program(task_of(text), device, [SplitGemm.name])
    forward = program.files["program.py"].split("def forward")[1]
    assert forward.count("split_linear_") == 2
    assert "split_pack_" not in forward
    assert "relu" not in forward
    module = load_emulated(program, tmp_path, monkeypatch)
    scope: dict[str, Any] = {}
    exec(compile(text, "task", "exec"), scope)
    torch.manual_seed(1)
    reference = scope["Model"]()
    own = module.ModelNew()
    (x,) = scope["get_inputs"]()
    own.load_state_dict(reference.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(own(x), reference(x), rtol=2e-6, atol=1e-6)
        for parameter in (*reference.parameters(), *own.parameters()):
            parameter.mul_(-0.5)
        own.prepare()
        torch.testing.assert_close(own(x), reference(x), rtol=2e-6, atol=1e-6)


WIDE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear({k}, {n})

    def forward(self, x):
        return torch.relu(self.layer(x))

def get_inputs():
    return [torch.randn({m}, {k})]

def get_init_inputs():
    return []
"""


def gains(text: str, precision: str = "fp32", arch: str = "sm_90") -> list[str]:
    """Recipes that found something to do in a task."""
    device = gpu()
    device = device.model_copy(update={"target": device.target.model_copy(update={"arch": arch})})
    task = task_of(text).model_copy(update={"precision": precision})
    return [gain.recipe for gain in rewrite(task, device, [SplitGemm.name])[1]]


def test_it_applies_where_the_float32_pipe_binds_and_leaves_the_rest_to_the_library() -> None:
    assert gains(WIDE.format(m=128, n=32768, k=16384)) == [SplitGemm.name]
    assert gains(WIDE.format(m=128, n=32768, k=16384), "tf32") == []
    shared = "torch.nn.functional.linear(x, self.layer.weight, self.layer.bias[:1])"
    assert gains(WIDE.format(m=128, n=32768, k=16384).replace("self.layer(x)", shared)) == []
    assert gains(WIDE.format(m=8, n=32768, k=16384)) == []
    assert gains(WIDE.format(m=128, n=64, k=64)) == []
    assert gains(WIDE.format(m=128, n=32768, k=16381)) == []
    assert gains(WIDE.format(m=128, n=32768, k=16384), arch="sm_75") == []
    assert gains(WIDE.format(m=128, n=32768, k=16384), arch="sm_120") == []


def test_k_is_cut_only_where_blocks_would_be_idle() -> None:
    chosen = tiling("sm_90", 232448)
    assert chosen is not None
    assert splits(128, 32768, 32768, 132, chosen) == 1
    assert splits(128, 2048, 8192, 132, chosen) > 1
    assert not supported(128, 3, 64)
    assert not supported(128, 64, 60)
    assert supported(128, 2**23 - 256, 64)
    assert not supported(128, 2**23, 64)


@needs_nvcc
@pytest.mark.parametrize(("arch", "memory"), [("80", 166912), ("90a", 232448), ("120a", 101376)])
def test_every_architecture_has_a_tiling_that_compiles_without_spills(arch: str, memory: int, tmp_path: Path) -> None:
    chosen = tiling(f"sm_{arch}", memory)
    assert chosen is not None
    assert chosen.shared_bytes <= memory
    report = compiles(source(chosen), tmp_path, [arch])[arch]
    assert re.findall(r"(\d+) bytes spill stores", report)
    assert set(re.findall(r"(\d+) bytes spill stores", report)) == {"0"}
    assert "serializ" not in report
    assert "warning" not in report
