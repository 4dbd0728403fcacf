"""Maxima without indices and pooled rows: what is rewritten, and that one kernel computes what the reference does."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.plain_maxima import PlainMaxima
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source

RECIPES = [PlainMaxima.name, "pointwise", "row_reduction"]


def test_pooled_and_largest_values_join_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = """
    x = F.max_pool1d(a.unsqueeze(1), 2).squeeze(1).sum(1) * 0.5
    y = torch.max(a * 2 + 1, dim=1, keepdim=True).values - 3
    z = F.max_pool1d(b, 3).mean(-1) + 1
    return x, y, z, torch.min(a, 0).values
    """
    task = make_task(model_source(forward, [(5, 67), (2, 3, 21)]), "cuda")
    program = emulated(task, RECIPES, tmp_path, monkeypatch)
    body = program.files["program.py"].split("def forward")[1]
    assert "max_pool" not in body
    assert "max.dim" not in body
    assert body.count("fused_maximum_sum") == 1


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.max(a, 1)",
        "return torch.max(a, 1).indices",
        "return torch.max(a, 1).values",
        "return F.max_pool1d(a, 2)",
        "return F.max_pool1d(a, 3, stride=2).sum(1)",
        "return F.max_pool1d(a, 3, padding=1).sum(1)",
        "return F.max_pool1d(a, 2, ceil_mode=True).sum(1)",
        "return F.max_pool1d(a, 8).sum(1)",
        "x = F.max_pool1d(a.unsqueeze(1), 2)\na.add_(1)\nreturn x.squeeze(1).sum(1)",
    ],
)
def test_what_needs_indices_or_overlapping_windows_is_left_alone(forward: str) -> None:
    task = make_task(model_source(forward, [(5, 67)]), "cuda")
    assert rewrite(task, gpu(), [PlainMaxima.name])[1] == []
