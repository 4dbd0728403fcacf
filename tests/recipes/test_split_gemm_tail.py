"""What follows a linear layer on split float16 joins its epilogue: which operators, and that they compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stitchcuda.recipes.split_gemm import SplitGemm
from stitchcuda.recipes.split_gemm_kernel import tiling
from stitchcuda.recipes.split_gemm_tail import SplitGemmTail, adapted
from stitchcuda.recipes.write import rewrite, write_program
from tests.recipes.emulation import compiles, gpu, load_emulated, needs_nvcc
from tests.recipes.support import make_task, model_source

RECIPES = [SplitGemmTail.name, SplitGemm.name]
INIT = """
self.one, self.two = nn.Linear(24, 20), nn.Linear(24, 20, bias=False)
self.limit = nn.Parameter(torch.tensor(0.2))
self.shift = nn.Parameter(torch.randn(20))
"""
FORWARD = """
x = torch.min(F.hardtanh(self.one(a) * 0.5, -0.3, 0.3), self.limit) - self.limit
y = self.two(a) + self.shift
y = y * torch.sigmoid(y) * 2.0
return F.gelu(x), torch.where(y > 0, y, F.elu(y)).relu() / 2.0
"""


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are rewritten whatever they gain."""
    monkeypatch.setattr("stitchcuda.recipes.split_gemm.WORTH", 0.0)
    monkeypatch.setattr("stitchcuda.recipes.split_gemm_tail.WORTH", 0.0)


def test_chains_and_what_they_read_again_join_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(model_source(FORWARD, [(2, 3, 24)], INIT), "cuda")
    program = write_program(task, gpu(8), RECIPES)
    forward = program.files["program.py"].split("def forward")[1]
    assert forward.count("split_linear_") == 2
    assert "_aten" not in forward
    module = load_emulated(program, tmp_path, monkeypatch)
    scope: dict[str, Any] = {}
    exec(task.source, scope)
    torch.manual_seed(1)
    reference, own = scope["Model"](), module.ModelNew()
    own.load_state_dict(reference.state_dict())
    (x,) = scope["get_inputs"]()
    with torch.no_grad():
        for mine, eager in zip(own(x), reference(x), strict=True):
            torch.testing.assert_close(mine, eager, rtol=2e-6, atol=1e-6)


def applied(forward: str, init: str = "self.layer = nn.Linear(24, 20)") -> list[str]:
    """Recipes that found something to do in a task with inputs a and b."""
    task = make_task(model_source(forward, [(6, 24), (6, 20)], init), "cuda")
    return [gain.recipe for gain in rewrite(task, gpu(8), RECIPES)[1]]


def test_layers_whose_activation_joins_anyway_are_left_to_the_other_recipe() -> None:
    assert applied("return self.layer(a)") == [SplitGemm.name]
    assert applied("return F.relu(self.layer(a))") == [SplitGemm.name]
    assert applied("return F.relu(self.layer(a)) / 2") == [SplitGemmTail.name]


def test_operators_that_read_another_tensor_or_are_read_twice_stay_behind() -> None:
    assert applied("return self.layer(a) + b") == [SplitGemm.name]
    assert applied("x = self.layer(a)\nreturn x, x * 2") == [SplitGemm.name]
    assert applied("return (self.layer(a) * 2).softmax(1)") == [SplitGemmTail.name]
    counts = "self.layer = nn.Linear(24, 20)\nself.register_buffer('count', torch.zeros(20))"
    assert applied("self.count.add_(1)\nreturn self.layer(a) * self.count", counts) == [SplitGemm.name]


@needs_nvcc
def test_a_kernel_with_a_tail_compiles_without_warnings(tmp_path: Path) -> None:
    chosen = tiling("sm_90", 232448)
    assert chosen is not None
    text = "  return own::tanh(v) * p.tail[0][column];"
    report = compiles(adapted(chosen, text, ["tail_0"], "pack", "linear"), tmp_path, ["90a"])["90a"]
    assert "warning" not in report
    assert "serializ" not in report
