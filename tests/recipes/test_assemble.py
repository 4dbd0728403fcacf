"""A printed Program keeps the reference's state, guards its shapes, and folds only what may be folded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stitchcuda.program.validate import validate
from tests.recipes.support import assert_accurate, loaded, make_task, model_source, twins, written

ALL = ("pointwise", "row_reduction", "epilogue", "concat", "pool_first", "batch_norm_folding", "cuda_graph")
NET = "self.conv = nn.Conv2d(3, 6, 3)\nself.norm = nn.BatchNorm2d(6)\nself.head = nn.Linear(6, 5)"
FORWARD = "x = F.silu(self.norm(self.conv(a))) * 2\nreturn self.head(x.mean((2, 3)))"


def test_names_and_random_numbers_of_the_constructor_are_the_references(cache: Path) -> None:
    task = make_task(model_source(FORWARD, [(2, 3, 9, 9)], NET))
    program = written(task, ALL)
    validate(program)
    with loaded(program, task, cache) as module:
        torch.manual_seed(4)
        new = module.ModelNew().state_dict()
        torch.manual_seed(4)
        old = module.Model().state_dict()
    assert list(new) == list(old)
    assert all(torch.equal(new[name], old[name]) for name in old)


def test_other_shapes_and_the_other_mode_are_refused(cache: Path) -> None:
    task = make_task(model_source(FORWARD, [(2, 3, 9, 9)], NET))
    with loaded(written(task, ALL), task, cache) as module, torch.no_grad():
        _, new, _ = twins(module, task)
        with pytest.raises(ValueError, match="specialised for"):
            new(torch.randn(4, 3, 9, 9))
        new.eval()
        with pytest.raises(ValueError, match="train mode"):
            new(torch.randn(2, 3, 9, 9))


def test_train_mode_updates_running_statistics_as_the_reference_does(cache: Path) -> None:
    task = make_task(model_source(FORWARD, [(2, 3, 9, 9)], NET))
    with loaded(written(task, ALL), task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        for seed in range(3):
            (a,) = reference.inputs(seed=seed)
            torch.testing.assert_close(new(a), model(a))
        assert int(new.state_dict()["norm.num_batches_tracked"]) == 3
        for name, value in model.state_dict().items():
            torch.testing.assert_close(new.state_dict()[name], value)


def test_eval_mode_folds_batch_norm_and_follows_new_state(cache: Path) -> None:
    task = make_task(model_source(FORWARD, [(2, 3, 9, 9)], NET), mode="eval")
    program = written(task, ALL)
    text = program.files["program.py"]
    assert "batch_norm" not in text.split("def forward")[1]
    assert_accurate(task, program, cache, factor=8.0, floor=1e-6)
    with loaded(program, task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        (a,) = reference.inputs(seed=0)
        new(a)
        model.state_dict()["norm.running_var"].mul_(3)
        model.state_dict()["conv.bias"].add_(1)
        new.load_state_dict(model.state_dict())
        torch.testing.assert_close(new(a), model(a), rtol=1e-4, atol=1e-5)


def test_nested_inputs_scalars_and_constants_are_printed(cache: Path) -> None:
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(4.0)
    def forward(self, pair, scale, extra=None):
        x, y = pair["x"], pair["y"][0]
        return [torch.tanh(x * scale + self.table) * y, (x.sum(), torch.tensor([1.0, 2.0]) * 2)], {"n": 3}
def get_inputs():
    return [{"x": torch.randn(5, 4), "y": [torch.randn(4)]}, 0.5]
def get_init_inputs():
    return []
"""
    task = make_task(source)
    assert_accurate(task, written(task, ALL), cache)


def test_infinities_nan_and_quotes_are_printed_as_python() -> None:
    source = """
class Model(nn.Module):
    def forward(self, a, scale, mode):
        limits = torch.tensor([[float("nan"), float("inf")], [1.0, -float("inf")]])
        return a * limits + (1 if mode == "it's" else 0), float("inf"), float("nan")
def get_inputs():
    return [torch.randn(2, 2), float("nan"), "it's"]
def get_init_inputs():
    return []
"""
    scope: dict[str, Any] = {}
    exec(written(make_task(source), ()).files["program.py"], scope)
    a, model = torch.ones(2, 2), scope["ModelNew"]()
    got, infinite, odd = model(a, float("nan"), "it's")
    expected = torch.tensor([[float("nan"), float("inf")], [2.0, -float("inf")]])
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert (infinite, odd != odd) == (float("inf"), True)
    with pytest.raises(ValueError, match=r'scale is 1.0; this program is specialised for float\("nan"\)'):
        model(a, 1.0, "it's")
    with pytest.raises(ValueError, match='specialised for "it\'s"'):
        model(a, float("nan"), "its")


def test_a_cuda_program_with_a_graph_restores_what_warm_up_changes() -> None:
    task = make_task(model_source(FORWARD, [(2, 3, 9, 9)], NET), "cuda")
    text = written(task, ALL).files["program.py"]
    compile(text, "program.py", "exec")
    assert '_Graph(self._compute, [a], [_state(self, "norm.running_mean")' in text
    assert "device='cpu'" not in text


def test_a_stochastic_program_is_not_captured_as_a_graph() -> None:
    task = make_task(model_source("return F.dropout(a, 0.5) * 2 + 1", [(64, 64)]), "cuda")
    assert "_Graph" not in written(task, ALL).files["program.py"]


ATTENTION = """
q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (a, a * 0.5, a + 1))
x = F.scaled_dot_product_attention(q, k, v)
x = x.permute(2, 0, 1, 3).contiguous().view(-1, 16)
return F.layer_norm(x + x.sigmoid(), (16,)), F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 16)
"""


def test_a_library_may_lay_its_result_out_otherwise(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(model_source(ATTENTION, [(3, 5, 16)]))
    program = written(task, ("pointwise", "row_reduction"))
    stock = torch.ops.aten.scaled_dot_product_attention.default
    with loaded(program, task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        inputs = reference.inputs(seed=3)
        expected = model(*inputs)

        def other(*arguments: Any) -> Any:
            return stock(*arguments).clone(memory_format=torch.contiguous_format)

        monkeypatch.setattr(module, "_aten", _Aten(other))
        for mine, eager in zip(new(*inputs), expected, strict=True):
            torch.testing.assert_close(mine, eager)


class _Aten:
    """ATen with another backend behind attention: the same numbers, other strides."""

    def __init__(self, attention: Callable[..., Any]) -> None:
        self.scaled_dot_product_attention = SimpleNamespace(default=attention)

    def __getattr__(self, name: str) -> object:
        return getattr(torch.ops.aten, name)
