"""Real inputs, real weights and parts of a model are ordinary Tasks to everything downstream."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from stitchcuda.errors import TaskError
from stitchcuda.recipes.source import kept_source
from stitchcuda.task.derive import for_programs
from stitchcuda.task.loader import load_task
from stitchcuda.task.reference import Reference
from stitchcuda.task.source import bound_names
from tests.task.test_loader import CPU, GOOD, write


def saved(folder: Path, value: Any, name: str = "saved.pt") -> Path:
    torch.save(value, folder / name)
    return folder / name


def test_real_inputs_replace_get_inputs_and_never_repeat(tmp_path: Path) -> None:
    real = torch.rand(4, 8)
    path = saved(tmp_path, [real])
    task = load_task(write(tmp_path, GOOD), target=CPU, inputs=path)
    reference = Reference(task)
    (first,), (again,), (second,) = reference.inputs(1), reference.inputs(1), reference.inputs(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert first.min() >= 0
    assert torch.allclose(first.sort(0).values, real.sort(0).values, rtol=1e-2)
    assert reference.cases() == ["real"]


def test_other_contents_give_another_digest(tmp_path: Path) -> None:
    source = write(tmp_path, GOOD)
    one = load_task(source, target=CPU, inputs=saved(tmp_path, [torch.ones(4, 8)]))
    two = load_task(source, target=CPU, inputs=saved(tmp_path, [torch.zeros(4, 8)]))
    assert one.digest != two.digest


def test_named_inputs_become_cases(tmp_path: Path) -> None:
    path = saved(tmp_path, {"short": [torch.ones(1, 8)], "long": [torch.ones(9, 8)]})
    reference = Reference(load_task(write(tmp_path, GOOD), target=CPU, inputs=path))
    assert reference.cases() == ["short", "long"]
    assert reference.inputs(0, "long")[0].shape == (9, 8)


@pytest.mark.parametrize("value", [{}, [], 3, {"a": {"b": 1}}])
def test_a_file_without_arguments_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TaskError, match="expected a list of forward's arguments"):
        load_task(write(tmp_path, GOOD), target=CPU, inputs=saved(tmp_path, value))


def test_files_that_are_missing_or_not_plain_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path, GOOD)
    with pytest.raises(TaskError, match=r"--inputs .*none\.pt is not a file"):
        load_task(source, target=CPU, inputs=tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(TaskError, match=r"cannot be read by torch\.load with weights_only=True"):
        load_task(source, target=CPU, checkpoint=tmp_path / "text.pt")
    with pytest.raises(TaskError, match="expected a state dict"):
        load_task(source, target=CPU, checkpoint=saved(tmp_path, [1, 2]))


def test_a_checkpoint_is_loaded_into_every_new_model(tmp_path: Path) -> None:
    source = write(tmp_path, GOOD)
    weights = Reference(load_task(source, target=CPU)).model(7).state_dict()
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in weights.items()}}
    task = load_task(source, target=CPU, checkpoint=saved(tmp_path, wrapped))
    loaded = Reference(task).model(8).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())


def test_a_checkpoint_that_does_not_fit_is_told_by_key(tmp_path: Path) -> None:
    source = write(tmp_path, GOOD)
    weights = dict(Reference(load_task(source, target=CPU)).model(7).state_dict())
    weights["linear.weight"] = torch.ones(3, 3)
    weights["other"] = weights.pop("linear.bias")
    task = load_task(source, target=CPU, checkpoint=saved(tmp_path, weights))
    with pytest.raises(ValueError, match=r"lacks linear\.bias; the model has no other; linear\.weight is \(3, 3\)"):
        Reference(task).model(0)


def test_a_submodule_is_a_task_with_the_inputs_the_full_model_gives_it(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD), target=CPU, submodule="inner")
    reference = Reference(task)
    model, (one,), (two,) = reference.model(0), reference.inputs(1), reference.inputs(2)
    assert one.shape == (4, 8)
    assert not torch.equal(one, two)
    weight, bias = model.parameters()
    assert torch.equal(model(one), torch.relu(torch.nn.functional.linear(one, weight, bias)))
    assert task.name == "small_inner"


def test_an_unknown_submodule_lists_those_there_are(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD), target=CPU, submodule="outer")
    with pytest.raises(ValueError, match="no submodule 'outer'; it has: linear, inner"):
        Reference(task).model(0)


def test_checkpoint_and_submodule_go_together(tmp_path: Path) -> None:
    source = write(tmp_path, GOOD)
    weights = Reference(load_task(source, target=CPU)).model(7).state_dict()
    task = load_task(source, target=CPU, checkpoint=saved(tmp_path, weights), submodule="inner.0")
    assert torch.equal(Reference(task).model(1).state_dict()["module.weight"], weights["inner.0.weight"])


@pytest.mark.parametrize("submodule", [None, "linear"])
def test_a_program_keeps_nothing_that_reads_the_users_files(tmp_path: Path, submodule: str | None) -> None:
    """Importing one would change the user's own class, and would need files that are not where it is taken to."""
    source = write(tmp_path, GOOD)
    plain = load_task(source, target=CPU, submodule=submodule).source
    weights = saved(tmp_path, Reference(load_task(source, target=CPU)).model(0).state_dict(), "weights.pt")
    inputs = None if submodule else saved(tmp_path, [torch.ones(4, 8)])
    task = load_task(source, target=CPU, checkpoint=weights, inputs=inputs, submodule=submodule)
    assert "weights.pt" in task.source
    assert [line for line in for_programs(task.source).splitlines() if line] == [
        line for line in for_programs(plain).splitlines() if line
    ]
    kept = kept_source(task.source)
    assert "torch.load" not in kept
    assert "manual_seed" not in kept
    assert "get_init_inputs" not in kept
    assert bound_names(ast.parse(kept)).keys() >= {"Model"}
