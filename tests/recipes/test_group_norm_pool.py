"""A group normalisation and the pool behind it in one kernel, emulated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from stitchcuda.recipes.group_norm_pool import GroupNormPool
from stitchcuda.recipes.write import rewrite, write_program
from tests.recipes.emulation import compiles, emulated, gpu, load_emulated, needs_nvcc, plain_cpp
from tests.recipes.support import make_task, model_source

SCALED = """
self.conv = nn.Conv2d(3, 8, 3)
self.norm = nn.GroupNorm(2, 8)
self.scale = nn.Parameter(torch.ones(8, 1, 1))
"""
CASES: dict[str, tuple[str, str, list[tuple[int, ...]]]] = {
    "a convolution's bias, a scale and a clamp": (
        SCALED,
        "return torch.clamp(F.max_pool2d(self.norm(self.conv(a)) * self.scale, 4), 0.0, 1.0)",
        [(2, 3, 48, 40)],
    ),
    "wide windows over instances far from zero": (
        "self.norm = nn.InstanceNorm2d(3)",
        "return F.max_pool2d(F.leaky_relu(self.norm(a + 100)), (3, 4)) * 2",
        [(2, 3, 70, 72)],
    ),
    "averages of odd windows": (
        "self.norm = nn.GroupNorm(3, 6)",
        "return F.avg_pool2d(torch.sigmoid(self.norm(torch.relu(a))), 3)",
        [(2, 6, 47, 64)],
    ),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.group_norm_pool.LARGE", 0)
    monkeypatch.setattr("stitchcuda.recipes.group_norm_pool.SHORTEST_GROUP", 1)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_normalises_and_pools(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init, forward, shapes = CASES[name]
    monkeypatch.setattr("stitchcuda.recipes.group_norm_pool.THREADS", 128)
    task = make_task(model_source(forward, shapes, init), "cuda")
    program = emulated(task, [GroupNormPool.name], tmp_path, monkeypatch, multiprocessors=1)
    body = program.files["program.py"].split("def forward")[1]
    assert "pool2d" not in body
    assert "_norm." not in body


def test_a_large_mean_costs_only_the_rounding_of_the_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = model_source("return F.avg_pool2d(self.norm(a), 2)", [(3, 3, 70, 72)], "self.norm = nn.InstanceNorm2d(3)")
    program = write_program(make_task(source, "cuda"), gpu(1), [GroupNormPool.name])
    files = {path: plain_cpp(text) if path.endswith(".cu") else text for path, text in program.files.items()}
    module = load_emulated(program.model_copy(update={"files": files}), tmp_path, monkeypatch)
    torch.manual_seed(0)
    a = torch.randn(3, 3, 70, 72) + 1000
    a[:, :, 0, 0] = 0  # the first element is no measure of the rest
    got = module.ModelNew()(a).double()
    exact = F.avg_pool2d(F.instance_norm(a.double()), 2)
    deviation = a.double().std((2, 3), correction=0)
    # A mean is a float: half a unit in its last place, in standard deviations of the group.
    assert ((got - exact).mean((2, 3)).abs() * deviation).max() <= 1.05 * 2**-15
    assert (got - exact).std((2, 3)).max() < 1e-6


@needs_nvcc
def test_it_compiles_and_does_not_spill(tmp_path: Path) -> None:
    init = "self.conv = nn.Conv2d(8, 64, 3)\nself.norm = nn.GroupNorm(16, 64)"
    forward = "return torch.clamp(F.max_pool2d(self.norm(self.conv(a)), 4), 0.0, 1.0)"
    task = make_task(model_source(forward, [(128, 8, 128, 128)], init), "cuda")
    rewriter, _ = rewrite(task, gpu(), [GroupNormPool.name])
    (text,) = rewriter.sources.values()
    for report in compiles(text, tmp_path).values():
        assert re.findall(r"(\d+) bytes spill stores", report) == ["0"]


@pytest.mark.parametrize(
    "pool",
    [
        "F.max_pool2d(x, 3, 2)",
        "F.max_pool2d(x, 2, padding=1)",
        "F.max_pool2d(x, 2, dilation=2)",
        "F.max_pool2d(x, 3, ceil_mode=True)",
        "F.avg_pool2d(x, 2, divisor_override=3)",
        "F.adaptive_avg_pool2d(x, 1)",
    ],
)
def test_other_pools_are_left_alone(pool: str) -> None:
    source = model_source(f"x = self.norm(a)\nreturn {pool}", [(2, 4, 64, 64)], "self.norm = nn.GroupNorm(2, 4)")
    assert not rewrite(make_task(source, "cuda"), gpu(), [GroupNormPool.name])[1]
