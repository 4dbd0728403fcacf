"""Softmax over channels with its pointwise neighbours in one kernel, emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.channel_softmax import ChannelSoftmax
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source

INIT = "self.bias = nn.Parameter(torch.randn(1, 5, 1, 1))"


def test_the_kernel_computes_the_softmax_and_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.channel_softmax.LARGE", 0)
    forward = "return torch.softmax(-a, 1) + 1, torch.tanh(torch.softmax(a * 3 + self.bias, 1)) * self.bias"
    task = make_task(model_source(forward, [(3, 5, 7, 11)], INIT), "cuda")
    program = emulated(task, [ChannelSoftmax.name], tmp_path, monkeypatch)
    body = program.files["program.py"].split("def forward")[1]
    assert body.count("channel_softmax_") == 2
    assert "_aten" not in body


@pytest.mark.parametrize("forward", ["return torch.softmax(a, 1)", "return torch.softmax(a * 2, 2)"])
def test_a_lone_softmax_and_other_dimensions_are_left_alone(forward: str) -> None:
    task = make_task(model_source(forward, [(64, 16, 128, 128)]), "cuda")
    assert not rewrite(task, gpu(), [ChannelSoftmax.name])[1]
