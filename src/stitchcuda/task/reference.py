"""The reference of a Task as living objects: its model, inputs and cases, in the Task's precision and mode.

For trusted processes (the oracle, recipes, profiling of the reference). It needs torch and the standard
library alone: ``task`` may be a ``task.model.Task`` or anything with the same attributes.
Nothing here measures or compares.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stitchcuda.task.source import execute

if TYPE_CHECKING:
    from stitchcuda.task.model import Task

CAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Precision classes whose parameters and floating inputs are cast; the others stay as the source makes them."""


class Malformed(TypeError):
    """What a source gives has not the form of a task; the message is a sentence of its own."""


def apply_precision(precision: str) -> None:
    """Set torch's process-wide TF32 switches for a precision class: on for tf32, off for every other one."""
    allowed = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    if precision in CAST:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


def seed_all(seed: int) -> None:
    """Seed every generator a task may draw from: torch on all devices, ``random``, and numpy where imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


def cast_and_move(value: Any, *, dtype: torch.dtype | None, device: str | None) -> Any:
    """``value`` with each tensor inside it moved, and cast where it is floating and at least 32 bits wide."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.detach()
        if dtype is not None and leaf.dtype in (torch.float32, torch.float64):
            leaf = leaf.to(dtype)
        return leaf if device is None else leaf.to(device)

    return pytree.tree_map(convert, value)


def as_arguments(value: Any, where: str) -> list[Any]:
    """``value`` as positional arguments; ``where`` says who returned it. Raises Malformed for no list or tuple."""
    if not isinstance(value, list | tuple):
        raise Malformed(
            f"{where} gave an object of type {type(value).__name__}; it must be a list of arguments, [] for none"
        )
    return list(value)


def move_plain_tensors(model: nn.Module, device: str, dtype: torch.dtype | None) -> None:
    """Move tensors that modules keep as plain attributes, which ``nn.Module.to`` leaves where they are."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, cast_and_move(value, dtype=dtype, device=device))


class Reference:
    """The executed source of a Task.

    Raises whatever the source raises when it runs. Sets the process-wide TF32 switches as the Task's
    precision asks.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.device = str(task.target.kind)
        self.dtype = CAST.get(task.precision)
        self.module = execute(task.source, task.name, search_path=task.search_path)
        apply_precision(task.precision)

    def init_inputs(self) -> list[Any]:
        """Arguments of the constructor, as ``get_init_inputs`` gives them."""
        values = self.module.get_init_inputs()
        return [values] if isinstance(values, Mapping) else as_arguments(values, "get_init_inputs()")

    def model(self, seed: int, *, on_device: bool = False) -> nn.Module:
        """A new model constructed under ``seed`` on the host, then cast and moved as the Task asks.

        With ``on_device`` weights are drawn on the target device where the source allows it: other numbers, in a
        fraction of the time for large models. The mode is set when the Task names one, and left as the constructor
        leaves it otherwise. Raises Malformed for what is no module.
        """
        seed_all(seed)
        arguments = self.init_inputs()
        seed_all(seed)
        try:
            with _default_device(self.device if on_device and self.device != "cpu" else None):
                model = self.construct("Model", arguments)
        except Exception:
            if not on_device:
                raise
            seed_all(seed)
            model = self.construct("Model", self.init_inputs())
        if not isinstance(model, nn.Module):
            raise Malformed(f"Model is no torch.nn.Module: calling it gave an object of type {type(model).__name__}")
        if self.dtype is not None:
            model = model.to(self.dtype)
        model = model.to(self.device)
        move_plain_tensors(model, self.device, self.dtype)
        if self.task.mode is not None:
            model.train(self.task.mode == "train")
        return model

    def construct(self, name: str, arguments: list[Any]) -> nn.Module:
        """``NAME(*arguments)``; a single mapping is passed as keywords."""
        factory: Callable[..., nn.Module] = getattr(self.module, name)
        if len(arguments) == 1 and isinstance(arguments[0], Mapping):
            return factory(**arguments[0])
        return factory(*arguments)

    def cases(self) -> list[str]:
        """Names of the input cases; empty when the source defines none."""
        return [name for name, _, _ in self._cases()]

    def weights(self) -> dict[str, float]:
        """How much each input case counts, by name; they sum to 1."""
        weights = {name: float(weight) for name, weight, _ in self._cases()}
        total = sum(weights.values()) or 1.0
        return {name: weight / total for name, weight in weights.items()}

    def inputs(self, seed: int, case: str | None = None) -> list[Any]:
        """Fresh inputs drawn under ``seed``, cast to the precision class.

        On the target device, or on the host when the Task's residence is ``host``. Without ``case`` they are
        ``get_inputs()``, or the first case where the source has no ``get_inputs``. Raises KeyError for an
        unknown case, Malformed for what are no arguments.
        """
        on_host = self.task.residence == "host" or self.device == "cpu"
        place = None if on_host else self.device
        try:
            seed_all(seed)
            with _default_device(place):
                values = self._draw(case)
        except Exception:
            if place is None:
                raise
            # A source that names a CPU generator, uses numpy or mixes devices cannot draw on the device.
            seed_all(seed)
            values = self._draw(case)
        moved = cast_and_move(values, dtype=self.dtype, device="cpu" if on_host else self.device)
        return list(moved)

    def _draw(self, case: str | None) -> list[Any]:
        if case is None and hasattr(self.module, "get_inputs"):
            return as_arguments(self.module.get_inputs(), "get_inputs()")
        cases = self._cases()
        for name, _, values in cases:
            if case is None or name == case:
                return as_arguments(values() if callable(values) else values, f"input case {name!r}")
        raise KeyError(f"no input case {case!r}; there are: {', '.join(name for name, _, _ in cases) or 'none'}")

    def _cases(self) -> list[tuple[str, float, Any]]:
        define = getattr(self.module, "get_input_cases", None)
        if define is None:
            return []
        cases = []
        for case in define():
            if not (isinstance(case, tuple | list) and len(case) == 3):
                raise Malformed("get_input_cases() must return a list of (name, weight, inputs)")
            cases.append((str(case[0]), float(case[1]), case[2]))
        return cases


@contextmanager
def _default_device(place: str | None) -> Iterator[None]:
    if place is None:
        yield
        return
    with torch.device(place):
        yield
