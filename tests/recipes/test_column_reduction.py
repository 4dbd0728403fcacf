"""Reductions over strided dimensions: every kind, ties and NaN, odd widths, emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.column_reduction import ColumnReduction
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import make_task, model_source

FORWARD = """
x = (a * 2).round()
y = torch.log(a + 2)
return x.argmax(1), torch.argmin(y, dim=1, keepdim=True), a.sum(1, keepdim=True), a.mean(dim=1), a.mean(0)
"""


def test_the_kernels_reduce_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.recipes.column_reduction.LARGE", 0)
    task = make_task(model_source(FORWARD, [(2, 40, 130)]), "cuda")
    program = emulated(task, [ColumnReduction.name], tmp_path, monkeypatch, multiprocessors=1)
    body = program.files["program.py"].split("def forward")[1]
    assert all(f"column_{kind}_" in body for kind in ("argmax", "argmin", "sum", "mean"))
    assert "_aten.mean" in body


@pytest.mark.parametrize("forward", ["return a.sum(2)", "return a.mean((0, 1))", "return a[:1].argmax(1)"])
def test_rows_several_dimensions_and_few_columns_are_left_alone(forward: str) -> None:
    task = make_task(model_source(forward, [(8, 2048, 4095)]), "cuda")
    assert not rewrite(task, gpu(), [ColumnReduction.name])[1]
