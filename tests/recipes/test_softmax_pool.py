"""Softmax over channels under max pools: windows of windows, leftovers at the ends, a convolution's bias, emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.softmax_pool import SoftmaxPool
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source


@pytest.mark.parametrize(
    ("layer", "forward", "shape"),
    [
        (
            "Conv3d(2, 8, 3)",
            "x = torch.softmax(self.conv(a), dim=1)\nreturn self.pool(self.pool(x))",
            (3, 2, 8, 11, 12),
        ),
        ("Conv2d(2, 5, 2)", "return F.max_pool2d(F.softmax(self.conv(a), 1), (2, 3))", (2, 2, 9, 12)),
    ],
    ids=["pools of pools", "odd planes"],
)
def test_the_kernel_pools_the_softmax(
    layer: str, forward: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stitchcuda.recipes.softmax_pool.LARGE", 0)
    task = make_task(model_source(forward, [shape], f"self.conv = nn.{layer}\nself.pool = nn.MaxPool3d(2)"), "cuda")
    body = emulated(task, [SoftmaxPool.name], tmp_path, monkeypatch).files["program.py"].split("class ModelNew")[1]
    assert "softmax_pool_" in body
    assert "max_pool3d" not in body


@pytest.mark.parametrize(
    "forward",
    [
        "return F.max_pool2d(F.softmax(a, 1), 3, 2)",
        "return F.max_pool2d(F.softmax(a, 2), 2)",
        "return F.max_pool2d(F.softmax(a, 1), 2, padding=1)",
        "x = F.softmax(a, 1)\nreturn x, F.max_pool2d(x, 2)",
    ],
)
def test_other_pools_are_left_alone(forward: str) -> None:
    task = make_task(model_source(forward, [(64, 16, 128, 128)]), "cuda")
    assert not rewrite(task, gpu(), [SoftmaxPool.name])[1]
