"""Layers whose weights are packed once: the same numbers, state that stays in charge, layouts that return."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stitchcuda.recipes.prepacked import available
from tests.recipes.support import assert_accurate, loaded, make_task, model_source, twins, written

RECIPES = ("batch_norm_folding", "prepacked", "row_reduction", "pointwise", "epilogue")

pytestmark = pytest.mark.skipif(not available(), reason="needs PyTorch with oneDNN")

ACTIVATIONS = [
    "F.relu(x)", "F.silu(x)", "F.relu6(x)", "F.hardtanh(x, -0.5, 0.25)", "F.leaky_relu(x, 0.2)", "F.gelu(x)",
    "F.gelu(x, approximate='tanh')", "torch.sigmoid(x)", "torch.tanh(x)", "F.hardswish(x)",
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_join_convolutions_and_a_linear_layer(cache: Path, activation: str) -> None:
    init = """
    self.conv, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
    self.layer = nn.Linear(6, 9)
    """
    forward = f"""
    x = self.conv(a)
    x = self.last({activation})
    y = {activation}
    x = self.layer(y.flatten(2)[..., :6])
    return {activation}
    """
    task = make_task(model_source(forward, [(2, 3, 5, 5)], init))
    program = written(task, RECIPES)
    body = program.files["program.py"].split("def forward")[-1]
    assert body.count("_pointwise.default(") == 3
    assert program.manifest is None
    assert_accurate(task, program, cache)


RESIDUAL = """
self.one, self.two = nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3)
self.norm, self.last = nn.BatchNorm2d(6), nn.Conv2d(6, 5, 1)
"""


def test_a_residual_network_in_eval_mode(cache: Path) -> None:
    forward = """
    x = F.relu(self.norm(self.one(a)))
    x = F.relu(self.two(x) + x)
    return self.last(x) * 2 + 1, x
    """
    task = make_task(model_source(forward, [(2, 4, 9, 10)], RESIDUAL), mode="eval")
    program = written(task, RECIPES)
    assert "_convolution_pointwise.binary" in program.files["program.py"]
    assert_accurate(task, program, cache)
    with loaded(program, task, cache) as module, torch.no_grad():
        _, new, reference = twins(module, task)
        assert all(value.is_contiguous() for value in new(*reference.inputs(seed=1)))


@pytest.mark.parametrize("bias", [True, False])
def test_layers_over_one_input_become_one_product(cache: Path, bias: bool) -> None:
    init = f"self.gate, self.up = nn.Linear(6, 10, bias={bias}), nn.Linear(6, 10, bias={bias})"
    forward = "return F.silu(self.gate(a)) * self.up(a)"
    task = make_task(model_source(forward, [(2, 5, 6)], init))
    program = written(task, RECIPES)
    assert program.files["program.py"].count("_linear_pointwise.default(") == 1
    assert_accurate(task, program, cache)


def test_a_convolution_that_stands_alone_is_left_to_pytorch(cache: Path) -> None:
    task = make_task(model_source("return F.relu(self.norm(self.one(a)))", [(2, 4, 9, 10)], RESIDUAL), mode="train")
    program = written(task, RECIPES)
    assert "_convolution_pointwise" not in program.files["program.py"]
    assert_accurate(task, program, cache)


def test_train_mode_keeps_its_statistics(cache: Path) -> None:
    forward = "return self.norm(self.last(self.two(self.one(a))))"
    task = make_task(model_source(forward, [(2, 4, 9, 10)], RESIDUAL.replace("Conv2d(6, 5, 1)", "Conv2d(6, 6, 1)")))
    program = written(task, RECIPES)
    assert program.files["program.py"].count("_convolution_pointwise.default(") == 3
    assert_accurate(task, program, cache)


def test_weights_are_packed_anew_when_state_is_loaded(cache: Path) -> None:
    task = make_task(model_source("return self.layer(a)", [(5, 6)], "self.layer = nn.Linear(6, 9)"))
    with loaded(written(task, RECIPES), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        inputs = reference.inputs(seed=1)
        new(*inputs)
        for value in model.parameters():
            value.mul_(3)
        new.load_state_dict(model.state_dict())
        torch.testing.assert_close(new(*inputs), model(*inputs))


def test_weights_that_a_call_computes_are_left_to_eager() -> None:
    task = make_task(
        model_source("return F.linear(a, b), F.conv2d(c, d)", [(5, 6), (3, 6), (1, 2, 4, 4), (2, 2, 3, 3)])
    )
    assert "mkldnn" not in written(task, RECIPES).files["program.py"]
