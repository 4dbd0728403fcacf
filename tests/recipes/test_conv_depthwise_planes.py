"""Depthwise convolutions that slide down through registers: every padding, tail and filter, emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.conv_depthwise_planes import ConvDepthwisePlanes
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source

CASES = {
    "no padding": ("3, groups=3, bias=False", (2, 3, 22, 32)),
    "wide filter": ("(3, 7), groups=3", (2, 3, 17, 24)),
    "odd width": ("(5, 3), groups=3, padding=(3, 1)", (1, 3, 19, 13)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_computes_the_convolution(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.conv_depthwise_planes.LARGE", 0)
    layer, shape = CASES[name]
    task = make_task(model_source("return self.conv(a)", [shape], f"self.conv = nn.Conv2d(3, 3, {layer})"), "cuda")
    program = emulated(task, [ConvDepthwisePlanes.name], tmp_path, monkeypatch)
    assert "depthwise_planes" in program.files["program.py"]


@pytest.mark.parametrize(
    "layer",
    ["Conv2d(8, 8, 3, groups=8, stride=2)", "Conv2d(8, 8, 3, groups=8, padding=1)", "Conv2d(8, 8, 3, groups=4)"],
    ids=["stride 2", "another recipe's", "groups of two"],
)
def test_other_convolutions_are_left_alone(layer: str) -> None:
    task = make_task(model_source("return self.conv(a)", [(8, 8, 512, 512)], f"self.conv = nn.{layer}"), "cuda")
    assert not rewrite(task, gpu(), [ConvDepthwisePlanes.name])[1]
