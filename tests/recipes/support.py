"""What the recipes' tests share: tasks from source, devices, and programs built and loaded for real on cpu."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from stitchcuda.evaluation.build import build
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.recipes.write import write_program
from stitchcuda.task.model import Mode, Precision, Target, Task
from stitchcuda.task.reference import Reference

HEADER = """
import torch
from torch import nn
import torch.nn.functional as F
"""


def make_task(
    source: str,
    kind: Literal["cuda", "cpu"] = "cpu",
    *,
    mode: Mode | None = None,
    precision: Precision = "fp32",
) -> Task:
    """A task from a class body's source; the usual imports are put before it."""
    target = Target(kind=kind, arch="native" if kind == "cpu" else "sm_90")
    text = HEADER + textwrap.dedent(source)
    return Task(name="test", origin="test", source=text, target=target, mode=mode, precision=precision)


def model_source(forward: str, shapes: list[tuple[int, ...]], init: str = "pass") -> str:
    """A task whose forward is ``forward`` over inputs a, b, c, ... of the given shapes."""
    names = ", ".join("abcdefgh"[: len(shapes)])
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    setup = textwrap.indent(textwrap.dedent(init).strip(), " " * 8)
    inputs = ", ".join(f"torch.randn({shape})" for shape in shapes)
    return f"""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
{setup}
    def forward(self, {names}):
{body}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


def make_device(kind: Literal["cuda", "cpu"] = "cpu") -> Device:
    """A device without measured ceilings."""
    target = Target(kind=kind, arch="native" if kind == "cpu" else "sm_90")
    cores = 2 if kind == "cpu" else 132
    return Device(target=target, name="test", multiprocessors=cores, memory_bytes=2**34, cache_bytes=2**25)


def written(task: Task, recipes: Collection[str]) -> Program:
    """The Program that the recipes give."""
    return write_program(task, make_device(task.target.kind), recipes)


@contextmanager
def loaded(program: Program, task: Task, cache: Path) -> Iterator[Any]:
    """The Program's module, built for real."""
    result = build(program, task.target, cache=cache)
    assert result.ok, result.log
    assert result.folder is not None
    sys.path.insert(0, str(result.folder))
    names = ("bindings",)
    for name in names:
        sys.modules.pop(name, None)
    try:
        spec = importlib.util.spec_from_file_location("program_under_test", result.folder / "program.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(result.folder))
        for name in names:
            sys.modules.pop(name, None)


def twins(module: Any, task: Task) -> tuple[nn.Module, nn.Module, Reference]:
    """Reference and Program with the same state, in the same mode, and the reference's maker."""
    reference = Reference(task)
    model = reference.model(seed=1)
    torch.manual_seed(1)
    new = module.ModelNew(*reference.init_inputs())
    if reference.dtype is not None:
        new = new.to(reference.dtype)
    new = new.to(reference.device)
    new.train(model.training)
    generator = torch.Generator().manual_seed(5)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=generator).to(value)
            value.mul_(0.8 + 0.4 * noise).add_(0.1 * noise)
        new.state_dict()[name].copy_(value)
    return model, new, reference


def errors(task: Task, program: Program, cache: Path, *, seed: int = 3) -> list[tuple[float, float]]:
    """For each output the relative distance to fp64 of the Program and of eager; checks structure on the way."""
    with loaded(program, task, cache) as module, torch.no_grad():
        model, new, reference = twins(module, task)
        inputs = reference.inputs(seed=seed)
        double = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs]
        got = leaves(new(*inputs))
        expected = leaves(model(*inputs))
        exact = leaves(model.double()(*double))
    assert len(got) == len(expected)
    distances = []
    for mine, eager, truth in zip(got, expected, exact, strict=True):
        assert mine.shape == eager.shape
        assert mine.dtype == eager.dtype
        assert torch.equal(mine.isnan(), eager.isnan())
        if not mine.is_floating_point():
            assert torch.equal(mine, eager)
            continue
        norm = truth.nan_to_num().norm().clamp_min(1e-30)
        distances.append(
            (
                float((mine.double() - truth).nan_to_num().norm() / norm),
                float((eager.double() - truth).nan_to_num().norm() / norm),
            )
        )
    return distances


def leaves(value: Any) -> list[torch.Tensor]:
    """Tensors of a result, flattened."""
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def assert_accurate(task: Task, program: Program, cache: Path, *, factor: float = 4.0, floor: float = 3e-7) -> None:
    """As accurate against fp64 as eager, within a factor, on every output."""
    for mine, eager in errors(task, program, cache):
        assert mine <= max(floor, factor * eager), f"{mine} from fp64, eager {eager}"
