"""Means over convolutions' outputs, taken over their inputs: the same numbers, on cpu for real and on cuda emulated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stitchcuda.recipes.conv_mean import ConvMean
from stitchcuda.recipes.window_sums import Window, WindowSums
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import assert_accurate, make_device, make_task, model_source, written

CASES = {
    "transposed, all": (
        "ConvTranspose2d(6, 16, 3, stride=2, padding=1, output_padding=1)",
        "x = self.conv(a) * 0.5\nreturn x.mean((2, 3), keepdim=True).mean((2, 3), keepdim=True)",
        (2, 6, 40, 44),
    ),
    "transposed, depth": (
        "ConvTranspose3d(4, 8, 3, stride=1, padding=1)",
        "return torch.softmax(self.conv(a).mean(dim=2, keepdim=True) + 1, 1)",
        (2, 4, 24, 12, 16),
    ),
    "strided": ("Conv2d(6, 16, (3, 5), stride=2, padding=1)", "return self.conv(a).mean((2, 3))", (2, 6, 41, 44)),
    "dilated, pooled": (
        "Conv2d(6, 16, 3, padding=2, dilation=2, bias=False)",
        "return F.adaptive_avg_pool2d(self.conv(a) / 2, 1)",
        (2, 6, 30, 30),
    ),
    "last": ("Conv3d(4, 8, 3, padding=1)", "return self.conv(a).mean(-1)", (2, 4, 8, 10, 24)),
    "one dimension": ("Conv1d(16, 32, 5, stride=3)", "return self.conv(a).mean(2)", (2, 16, 2000)),
}


@pytest.fixture(autouse=True)
def small_layers_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's decision is not what these tests are about."""
    monkeypatch.setattr("stitchcuda.recipes.conv_mean.RATES", {"cuda": 1e9, "cpu": 1e9})


@pytest.mark.parametrize("name", CASES)
def test_the_mean_is_the_same(name: str, cache: Path) -> None:
    layer, forward, shape = CASES[name]
    task = make_task(model_source(forward, [shape], f"self.conv = nn.{layer}"))
    program = written(task, [ConvMean.name])
    assert "_aten.sum" in program.files["program.py"]
    assert_accurate(task, program, cache, floor=1e-6)


@pytest.mark.parametrize("name", ["strided"])
def test_the_kernel_sums_every_window(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, forward, shape = CASES[name]
    task = make_task(model_source(forward, [shape], f"self.conv = nn.{layer}"), "cuda")
    program = emulated(task, [ConvMean.name], tmp_path, monkeypatch)
    assert "window_sums" in program.files["program.py"]


def test_what_does_not_commute_with_the_mean_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for forward in (
        "return F.relu(self.conv(a)).mean((2, 3))",
        "return self.conv(a).mean((1, 2))",
        "x = self.conv(a)\nreturn x, x.mean((2, 3))",
    ):
        task = make_task(model_source(forward, [(2, 6, 40, 44)], "self.conv = nn.Conv2d(6, 16, 3)"))
        assert not rewrite(task, make_device(), [ConvMean.name])[1]


def test_means_over_samples_are_left_alone() -> None:
    for forward in ("return self.conv(a).mean(0)", "return self.conv(a).mean((0, 1, 2))"):
        task = make_task(model_source(forward, [(2, 16, 2000)], "self.conv = nn.Conv1d(16, 32, 5)"))
        assert not rewrite(task, make_device(), [ConvMean.name])[1]


def test_sums_that_fit_no_registers_or_index_are_left_alone() -> None:
    assert WindowSums(64, 512, 512, (Window(0, 511, 1),) * 3).fits
    assert not WindowSums(64, 512, 512, (Window(0, 511, 1),) * 25).fits
    assert not WindowSums(2**27, 8, 1, (Window(0, 8, 1),)).fits
    filters = "self.conv = nn.Conv2d(3, 4, (1, 120))"
    task = make_task(model_source("return self.conv(a).mean(3)", [(2, 3, 8, 512)], filters), "cuda")
    assert not rewrite(task, gpu(), [ConvMean.name])[1]


def test_a_few_long_rows_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for shape, applies in (((16, 1, 2**20), False), ((2**14, 1, 2**10), True)):
        source = model_source("return self.conv(a).mean(2)", [shape], "self.conv = nn.Conv1d(1, 16, 3)")
        assert bool(rewrite(make_task(source, "cuda"), gpu(), [ConvMean.name])[1]) == applies


def test_a_small_convolution_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    forward = "return self.conv(a).mean((2, 3))"
    task = make_task(model_source(forward, [(2, 3, 8, 8)], "self.conv = nn.Conv2d(3, 4, 3)"), "cuda")
    assert not rewrite(task, gpu(), [ConvMean.name])[1]


def test_windows_are_what_each_tap_meets() -> None:
    layer = torch.nn.ConvTranspose1d(1, 1, 3, stride=2, padding=1, output_padding=1, bias=False)
    x = torch.randn(1, 1, 9, dtype=torch.float64)
    windows = [Window(1, 9, 1), Window(0, 9, 1), Window(0, 9, 1)]
    layer = layer.double()
    own = sum(w * x[0, 0, s.first : s.end : s.step].sum() for w, s in zip(layer.weight.flatten(), windows, strict=True))
    torch.testing.assert_close(layer(x).sum(), own)
