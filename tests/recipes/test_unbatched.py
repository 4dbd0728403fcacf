"""Convolutions without a batch dimension: their channels come first, so recipes that add a bias leave theirs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.planner import survey_recipes
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source

CASES = {
    "pool": ("return F.max_pool2d(self.conv(a), 2)", "pool_first"),
    "pool of an activation": ("return F.max_pool2d(F.relu(self.conv(a)), 2)", "pool_first"),
    "activation": ("return F.relu(self.conv(a))", "epilogue"),
    "two readers": ("x = self.conv(a)\nreturn torch.sigmoid(x) * x", "epilogue"),
    "group norm": ("return F.group_norm(self.conv(a), 4)", "group_norm"),
}


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are rewritten like large ones."""
    monkeypatch.setattr("stitchcuda.recipes.group_norm.LARGE", 0)
    monkeypatch.setattr("stitchcuda.recipes.group_norm_kernel.ROUND_SECONDS", 0.0)
    monkeypatch.setattr("stitchcuda.recipes.softmax_pool.LARGE", 0)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("case", CASES)
def test_a_bias_stays_along_the_channels(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, recipe = CASES[case]
    side = 18 if "pool" in case else 10  # then dimension 1 has as many as there are channels
    forward += ", F.relu(a) * 2"  # there is a kernel to look at in any case
    task = make_task(model_source(forward, [(3, side, side)], "self.conv = nn.Conv2d(3, 8, 3)"), "cuda")
    emulated(task, [recipe, "pointwise"], tmp_path, monkeypatch)


@pytest.mark.parametrize("case", ["pool", "two readers"])
def test_planning_reads_them(case: str) -> None:
    task = make_task(model_source(CASES[case][0], [(3, 33, 35)], "self.conv = nn.Conv2d(3, 8, 3)"), "cuda")
    assert not survey_recipes(task, gpu()).rewriter.left_out


def test_a_pooled_volume_without_a_batch_keeps_its_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.softmax_pool.LARGE", 0)
    forward = "return F.max_pool2d(F.softmax(self.conv(a), 1), 2), F.relu(a) * 2"
    task = make_task(model_source(forward, [(2, 6, 10, 10)], "self.conv = nn.Conv3d(2, 4, 3)"), "cuda")
    emulated(task, ["softmax_pool", "pointwise"], tmp_path, monkeypatch)
