"""Cross entropy in one launch: ignored rows, tails and the blocks' sums, emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.recipes.cross_entropy import CrossEntropy
from stitchcuda.recipes.write import rewrite
from tests.recipes.emulation import emulated, gpu
from tests.recipes.support import HEADER, make_task

SOURCE = (
    HEADER
    + """
class Model(nn.Module):
    def forward(self, predictions, targets):
        return F.cross_entropy(predictions, targets{options})

def get_inputs():
    targets = torch.randint(0, {classes}, ({rows},))
    targets[3] = -100
    return [2 * torch.randn({rows}, {classes}) + {shift}, targets]

def get_init_inputs():
    return []
"""
)


@pytest.mark.parametrize(
    ("rows", "classes", "options", "shift"),
    [(21, 72, "", 0), (19, 1300, ", reduction='sum'", 1e5)],
    ids=["mean", "sum of longer rows of large logits"],
)
def test_the_kernel_computes_the_loss(
    rows: int, classes: int, options: str, shift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(SOURCE.format(rows=rows, classes=classes, options=options, shift=shift), "cuda")
    program = emulated(task, [CrossEntropy.name], tmp_path, monkeypatch, multiprocessors=2, calls=2)
    assert "cross_entropy_loss" not in program.files["program.py"].split("class ModelNew")[1]


@pytest.mark.parametrize("options", [", label_smoothing=0.1", ", reduction='none'"])
def test_other_losses_are_left_alone(options: str) -> None:
    task = make_task(SOURCE.format(rows=2048, classes=1024, options=options, shift=0), "cuda")
    assert not rewrite(task, gpu(), [CrossEntropy.name])[1]
