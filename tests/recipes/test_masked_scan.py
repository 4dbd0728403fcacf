"""Running sums of rows: masks, chunks and tails, emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.masked_scan import MaskedScan
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source


@pytest.mark.parametrize(
    ("forward", "width"),
    [("return torch.cumsum(a * (b > 0), -1)", 4996), ("return torch.cumsum(a, dim=1)", 10244)],
    ids=["masked", "plain, two chunks and a tail"],
)
def test_the_kernel_sums_rows(forward: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(model_source(forward, [(3, width), (3, width)]), "cuda")
    program = emulated(task, [MaskedScan.name], tmp_path, monkeypatch, multiprocessors=2)
    body = program.files["program.py"].split("class ModelNew")[1]
    assert "masked_scan_" in body
    assert "mul" not in body


@pytest.mark.parametrize("forward", ["return torch.cumsum(a, 0)", "return torch.cumsum(a[:, :100], 1)"])
def test_other_scans_are_left_alone(forward: str) -> None:
    task = make_task(model_source(forward, [(300, 4096)]), "cuda")
    assert not rewrite(task, gpu(), [MaskedScan.name])[1]
