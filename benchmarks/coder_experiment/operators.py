"""The operators that tasks are composed of: how each is written in a task, in CUDA, and computed exactly (float64).

Values are matrices ``[rows, cols]``. Pure; what composes operators is in ``tasks``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RMS_EPSILON = 1e-5
CLAMP, SCALAR, BINARY, UNARY, ROW, LAYOUT = "clamp", "scalar", "binary", "unary", "row", "layout"


@dataclass(frozen=True)
class Operator:
    """One operator. ``text`` and ``code`` are templates of the value ``{v}`` and the operand ``{o}``; ``trace`` are
    patterns of code that computes it, one of which a program's own code has to hold."""

    name: str
    kind: str
    text: str
    code: str
    apply: Callable[..., Array]
    trace: tuple[str, ...]


def _sigmoid(v: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * v)))


def _gelu(v: Array) -> Array:
    return np.asarray(0.5 * v * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v**3))))


def _softmax(v: Array) -> Array:
    e = np.exp(v - v.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _rmsnorm(v: Array) -> Array:
    return np.asarray(v / np.sqrt((v * v).mean(axis=1, keepdims=True) + RMS_EPSILON))


_ALL = (
    Operator("relu", UNARY, "relu({v})", "fmaxf({v}, 0.f)", lambda v: np.maximum(v, 0.0), (r"fmaxf", r"\?")),
    Operator("gelu", UNARY, "gelu({v})", "gelu({v})", _gelu, (r"\bgelu", r"tanhf")),
    Operator("silu", UNARY, "silu({v})", "silu({v})", lambda v: np.asarray(v * _sigmoid(v)), (r"silu", r"sigmoid")),
    Operator("sigmoid", UNARY, "sigmoid({v})", "sigmoid({v})", _sigmoid, (r"sigmoid", r"expf")),
    Operator("tanh", UNARY, "tanh({v})", "tanhf({v})", lambda v: np.asarray(np.tanh(v)), (r"tanhf",)),
    Operator("abs", UNARY, "abs({v})", "fabsf({v})", lambda v: np.asarray(np.abs(v)), (r"fabsf", r"\?")),
    Operator("square", UNARY, "square({v})", "sq({v})", lambda v: np.asarray(v * v), (r"\bsq\b", r"\*")),
    Operator("scale", SCALAR, "{v} * {o}", "{v} * {o}", lambda v, o: np.asarray(v * o), (r"\*", r"/")),
    Operator("shift", SCALAR, "{v} + {o}", "{v} + {o}", lambda v, o: np.asarray(v + o), (r"\+", r"-")),
    Operator(
        "clamp",
        CLAMP,
        "clamp({v}, {o})",
        "fminf(fmaxf({v}, -{o}), {o})",
        lambda v, o: np.asarray(np.clip(v, -o, o)),
        (r"fminf", r"\?"),
    ),
    Operator("mul", BINARY, "{v} * {o}", "{v} * {o}", lambda v, o: np.asarray(v * o), (r"\*",)),
    Operator("add", BINARY, "{v} + {o}", "{v} + {o}", lambda v, o: np.asarray(v + o), (r"\+",)),
    Operator("sub", BINARY, "{v} - {o}", "{v} - {o}", lambda v, o: np.asarray(v - o), (r"-",)),
    Operator("max", BINARY, "max({v}, {o})", "fmaxf({v}, {o})", lambda v, o: np.asarray(np.maximum(v, o)), (r"fmaxf",)),
    Operator("min", BINARY, "min({v}, {o})", "fminf({v}, {o})", lambda v, o: np.asarray(np.minimum(v, o)), (r"fminf",)),
    Operator("gate", BINARY, "{v} * sigmoid({o})", "{v} * sigmoid({o})", lambda v, o: v * _sigmoid(o), (r"sigmoid",)),
    Operator("softmax", ROW, "softmax({v})", "", _softmax, (r"expf",)),
    Operator("rmsnorm", ROW, "rmsnorm({v})", "", _rmsnorm, (r"rsqrtf", r"sqrtf")),
    Operator("center", ROW, "center({v})", "", lambda v: np.asarray(v - v.mean(axis=1, keepdims=True)), (r"all_sum",)),
    Operator(
        "rowsum", ROW, "rowsum({v})", "", lambda v: np.asarray(v.sum(axis=1, keepdims=True)), (r"all_sum", r"\+=")
    ),
    Operator(
        "rowmax", ROW, "rowmax({v})", "", lambda v: np.asarray(v.max(axis=1, keepdims=True)), (r"all_max", r"fmaxf")
    ),
    Operator("transpose", LAYOUT, "transpose({v})", "{v}", lambda v: np.asarray(v.T), (r"FILL", r"\* R")),
)

OPERATORS: dict[str, Operator] = {each.name: each for each in _ALL}
REDUCTIONS = ("rowsum", "rowmax")
"""Their value is one column."""
POINTWISE = tuple(each.name for each in _ALL if each.kind in (UNARY, SCALAR, CLAMP, BINARY))
ROW_WISE = tuple(each.name for each in _ALL if each.kind == ROW)
ADDITIVE = ("shift", "add", "sub")
"""Their texts need parentheses inside products and differences."""


@dataclass(frozen=True)
class Step:
    """One operator applied to the value so far. ``operand``: an input's name, a constant, or None."""

    name: str
    operand: str | float | None = None

    @property
    def operator(self) -> Operator:
        """The operator by its name."""
        return OPERATORS[self.name]

    def apply(self, value: Array, inputs: dict[str, Array]) -> Array:
        """The value after it; float64."""
        if self.operand is None:
            return self.operator.apply(value)
        return self.operator.apply(value, inputs[self.operand] if isinstance(self.operand, str) else self.operand)

    def as_json(self) -> list[Any]:
        """For a record."""
        return [self.name, self.operand]


def wrap(text: str, step: Step, *, additive: bool) -> str:
    """``text`` in parentheses where it is a sum that ``step`` would take apart."""
    return f"({text})" if additive and step.operator.text.startswith("{v} ") and step.name not in ADDITIVE else text


def number(value: float) -> str:
    """A constant as tasks write it."""
    return f"{value:g}"


def literal(value: float) -> str:
    """A constant as a float of C."""
    text = f"{value:g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.f"
