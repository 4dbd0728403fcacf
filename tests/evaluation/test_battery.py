"""Trivial answers, what they pass, and the reference under other states, in pieces, and with unneeded work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stitchcuda.evaluation.battery import Found, passing, run_battery
from stitchcuda.evaluation.dead_work import dead_work
from stitchcuda.evaluation.expectation import Expectation
from stitchcuda.evaluation.judging import output_leaves
from stitchcuda.evaluation.settings import TOLERANCES
from stitchcuda.evaluation.variety import Variety
from tests.evaluation.conftest import make_task

SHAPES = "def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"


def model(forward: str, inputs: str = "torch.rand(64, 128)", init: str = "pass") -> str:
    """Source of a task."""
    body = f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
    return body + f"    def forward(self, x, y=None):\n        return {forward}\n" + SHAPES.format(inputs=inputs)


def expect(source: str, precision: str = "fp32") -> Expectation:
    """The reference of a small task in its perturbed state."""
    task = SimpleNamespace(**make_task(source, precision=precision).model_dump())
    task.target = SimpleNamespace(**task.target)
    expectation = Expectation(task, True, False, False)
    expectation.observe()
    expectation.renew(b"nonce")
    return expectation


def found(source: str, precision: str = "fp32") -> Found:
    """The battery's result on a small task."""
    expectation = expect(source, precision)
    tolerance = TOLERANCES[precision].model_dump()
    return run_battery(expectation, tolerance, Variety(expectation, source), None, seconds=60)


LINEAR = "self.l = nn.Linear(128, 32)"


def test_no_trivial_answer_passes_a_plain_layer() -> None:
    result = found(model("self.l(x)", init=LINEAR))
    assert result.ours == []
    assert {"zeros", "constant", "previous", "other_weights", "other_seed", "bf16", "sample"} <= set(result.tried)
    assert not result.ill_conditioned


@pytest.mark.parametrize(
    ("source", "ours", "whole"),
    [
        (model("x.sigmoid().clamp(1, 2)"), {"zeros": False, "constant": True, "previous": True}, {"constant": True}),
        (model("torch.relu(x)"), {"identity": True, "zeros": False}, {"identity": False}),
        (model("self.l(x) * 0", init=LINEAR), {"zeros": True, "other_weights": True}, {"zeros": True}),
        (model("x * (y.sum() * 0 + 1)", "torch.rand(64, 128), torch.rand(512, 64)"), {"sample:1": True}, {}),
        (model("torch.clamp(self.l(x) - 90, min=0)", init=LINEAR), {"zeros": True, "sample": True}, {"zeros": False}),
    ],
    ids=["constant", "relu of positives", "zero", "ignored input", "far below"],
)
def test_trivial_answers_that_pass_are_named(source: str, ours: dict[str, bool], whole: dict[str, bool]) -> None:
    result = found(source)
    assert {name: name in result.ours for name in ours} == ours
    assert {name: name in result.whole for name in whole} == whole


def test_a_number_is_not_taken_for_a_constant_of_itself() -> None:
    assert "constant" not in found(model("x.mean()")).ours


def test_kernelbench_tolerances_let_more_pass() -> None:
    result = found(model("torch.softmax(x, -1) * 1e-3"))
    assert result.ours == []
    assert "zeros" in result.kernelbench["1e-4"]
    assert set(result.kernelbench["1e-4"]) <= set(result.kernelbench["1e-2"])


def test_rounding_noise_for_an_answer_is_ill_conditioned() -> None:
    result = found(model("(x - x.mean(-1, keepdim=True)).mean(-1)"))
    assert result.ill_conditioned
    assert "zeros" in result.ours


def test_half_precision_classes_are_not_asked_for_a_rounded_copy() -> None:
    assert "bf16" not in found(model("self.l(x)", init=LINEAR), "bf16").tried


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_weights_are_moved_further_than_the_budget_of_their_class_allows(precision: str) -> None:
    result = found(model("self.l(x)", "torch.randn(64, 128)", LINEAR), precision)
    assert {"other_weights", "other_seed"} <= set(result.tried)
    assert result.ours == []


def test_what_an_earlier_state_of_the_rules_found_is_not_believed(tmp_path: Path) -> None:
    source = model("self.l(x)", init=LINEAR)
    expectation, cache = expect(source), tmp_path / "battery.json"
    arguments = (expectation, TOLERANCES["fp32"].model_dump(), Variety(expectation, source), None, cache)
    cache.write_text('{"passing": ["zeros"]}')
    assert passing(*arguments) == []
    cache.write_text(cache.read_text().replace('"passing": []', '"passing": ["zeros"]'))
    assert passing(*arguments) == ["zeros"]


def test_the_battery_leaves_the_state_as_it_was(tmp_path: object) -> None:
    source = model("self.l(x)", init=LINEAR)
    expectation = expect(source)
    inputs = expectation.inputs(b"n", "a", None)
    before = expectation.eager(inputs, -1)[0]
    assert passing(expectation, TOLERANCES["fp32"].model_dump(), Variety(expectation, source), None, None) == []
    assert torch.equal(before, expectation.eager(inputs, -1)[0])
    other = expectation.current
    expectation.reweigh(77)
    assert not torch.equal(before, expectation.eager(inputs, -1)[0])
    with expectation.under(other):
        assert torch.equal(before, expectation.eager(inputs, -1)[0])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    ],
    ids=["torch", "cublas", "cudnn"],
)
def test_fp64_goes_in_parts_of_the_batch_where_memory_is_short(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    expectation = expect(model("self.l(x) + y", "torch.rand(66, 128), torch.rand(66, 32)", LINEAR))
    inputs = expectation.inputs(b"n", "a", None)
    whole = expectation.exact(inputs)
    real = Expectation._exact

    def short(self: Expectation, values: list[torch.Tensor], device: str) -> object:
        if values[0].shape[0] > 20:
            raise error
        return real(self, values, device)

    monkeypatch.setattr(Expectation, "_exact", short)
    parts = expectation.exact(inputs)
    assert whole is not None
    assert parts is not None
    assert expectation.exact_pieces == 4
    for one, two in zip(output_leaves(whole[0]), output_leaves(parts[0]), strict=True):
        assert one.dtype == torch.float64
        assert torch.allclose(one, two, rtol=1e-12)


def test_rows_that_depend_on_each_other_are_not_computed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    expectation = expect(model("x - x.mean(0)", "torch.rand(66, 128)"))
    assert expectation._splits(expectation.inputs(b"n", "a", None)) is None


def test_work_that_nobody_needs_is_named() -> None:
    source = model(
        "torch.relu(torch.relu(self.l(x))) + 0 * torch.zeros(1)", init=f"{LINEAR}; self.spare = nn.Linear(4, 4)"
    ).replace("        return torch", "        torch.sin(x)\n        return torch")
    expectation = expect(source)
    told = " | ".join(dead_work(expectation, expectation.inputs(b"n", "a", None)))
    assert "relu" in told
    assert "spare.weight" in told
    assert "results that nothing reads: sin" in told
    clean = expect(model("torch.relu(self.l(x))", init=LINEAR))
    assert dead_work(clean, clean.inputs(b"n", "a", None)) == []


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("F.binary_cross_entropy(x, y)", "torch.rand(64, 128), torch.rand(64, 128).round()"),
        ("y[x.long()]", "torch.randint(0, 100, (64,)).float(), torch.rand(100)"),
        ("y[(x * 100).long()]", "torch.rand(64), torch.rand(100)"),
    ],
    ids=["probabilities", "indices", "fractions of indices"],
)
def test_noise_leaves_probabilities_and_indices_in_their_range(forward: str, inputs: str) -> None:
    expectation = expect(model(forward, inputs))
    given = expectation.inputs(b"nonce", "0", None)
    right = output_leaves(expectation.eager(given, -1)[0])[0]
    moved = [output_leaves(expectation.noisy(given, -1, 0.25, draw)[0])[0] for draw in range(8)]
    assert all(not torch.equal(each, right) for each in moved)


def test_noise_moves_other_numbers_beyond_their_range() -> None:
    expectation = expect(model("x", "torch.rand(64)"))
    given = expectation.inputs(b"nonce", "0", None)
    assert float(output_leaves(expectation.noisy(given, -1, 0.25, 0)[0])[0].max()) > float(given[0].max())
