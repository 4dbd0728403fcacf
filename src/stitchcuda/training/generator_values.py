"""What generated tasks are made of: a value with what is known of its range, and the operators that may follow.

Ranges are tracked roughly, so that compositions stay alive: no ReLU of what is never negative, no exponential of what
has grown, no sum of what sums to one. What that misses, the audit finds. Putting values together is in ``generator``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Value:
    """A tensor inside a forward that is being written."""

    name: str
    """Its Python variable."""
    expression: str
    """What it is, without sizes, constants and names: equal for equal compositions."""
    shape: tuple[str, ...]
    """Names of its sizes."""
    negative: bool = True
    """It may be below zero."""
    grown: bool = False
    """Its magnitude may be far above one."""
    settled: str = ""
    """The reduction over its last dimension that is a constant: 'mean' after a norm, 'sum' after a softmax."""


@dataclass(frozen=True)
class Unary:
    """An elementwise operator; ``{x}`` stands for its argument and ``{c}`` for a constant."""

    name: str
    code: str
    constants: tuple[float, ...] = ()
    fits: Callable[[Value], bool] = lambda value: True
    negative: bool | None = True
    """Whether its result may be below zero; None: as its argument."""
    grown: bool | None = None
    """Whether its result may be large; None: as its argument."""

    def apply(self, value: Value, name: str, rng: random.Random) -> tuple[str, Value]:
        """The expression in Python, and its value under ``name``."""
        constant = f"{rng.choice(self.constants)}" if self.constants else ""
        made = replace(
            value,
            name=name,
            expression=f"{self.name}({value.expression})",
            negative=value.negative if self.negative is None else self.negative,
            grown=value.grown if self.grown is None else self.grown,
            settled="",
        )
        return self.code.format(x=value.name, c=constant), made


def _signed(value: Value) -> bool:
    return value.negative


def _positive(value: Value) -> bool:
    return not value.negative


def _small(value: Value) -> bool:
    return not value.grown


UNARY = (
    Unary("relu", "torch.relu({x})", fits=_signed, negative=False),
    Unary("gelu", "F.gelu({x})", fits=_signed),
    Unary("gelu_tanh", "F.gelu({x}, approximate='tanh')", fits=_signed),
    Unary("silu", "F.silu({x})", fits=_signed),
    Unary("mish", "F.mish({x})", fits=_signed),
    Unary("softplus", "F.softplus({x})", fits=_signed, negative=False),
    Unary("elu", "F.elu({x})", fits=_signed),
    Unary("selu", "F.selu({x})", fits=_signed),
    Unary("celu", "F.celu({x}, alpha={c})", (0.5, 1.5, 2.0), fits=_signed),
    Unary("leaky_relu", "F.leaky_relu({x}, {c})", (0.01, 0.1, 0.2), fits=_signed),
    Unary("hardswish", "F.hardswish({x})", fits=_signed),
    Unary("hardtanh", "F.hardtanh({x})", fits=_small, negative=None),
    Unary("relu6", "F.relu6({x})", fits=lambda v: v.negative and not v.grown, negative=False),
    Unary("tanh", "torch.tanh({x})", fits=_small, negative=None, grown=False),
    Unary("sigmoid", "torch.sigmoid({x})", fits=_small, negative=False, grown=False),
    Unary("hardsigmoid", "F.hardsigmoid({x})", fits=_small, negative=False, grown=False),
    Unary("logsigmoid", "F.logsigmoid({x})", fits=_small),
    Unary("softsign", "F.softsign({x})", fits=_small, negative=None, grown=False),
    Unary("softshrink", "F.softshrink({x}, {c})", (0.1, 0.25), fits=_signed),
    Unary("tanhshrink", "F.tanhshrink({x})", fits=lambda v: v.negative and not v.grown),
    Unary("sin", "torch.sin({x})", fits=_small, grown=False),
    Unary("cos", "torch.cos({x})", fits=_small, grown=False),
    Unary("atan", "torch.atan({x})", fits=_small, negative=None, grown=False),
    Unary("abs", "torch.abs({x})", fits=_signed, negative=False),
    Unary("neg", "-{x}"),
    Unary("square", "{x} * {x}", fits=_small, negative=False, grown=True),
    Unary("exp", "torch.exp({x} * {c})", (0.25, 0.5), fits=_small, negative=False, grown=True),
    Unary("expm1", "torch.expm1({x} * {c})", (0.25, 0.5), fits=_small, grown=True),
    Unary("erf", "torch.erf({x})", fits=_small, negative=None, grown=False),
    Unary("log1p", "torch.log1p({x})", fits=_positive, negative=False, grown=False),
    Unary("sqrt", "torch.sqrt({x} + {c})", (0.1, 1.0), fits=_positive, negative=False, grown=False),
    Unary("rsqrt", "torch.rsqrt({x} + {c})", (0.5, 1.0), fits=_positive, negative=False, grown=False),
    Unary("reciprocal", "1.0 / ({x} + {c})", (1.0, 2.0), fits=_positive, negative=False, grown=False),
    Unary("scale", "{x} * {c}", (0.125, 0.5, 1.5, 3.0), negative=None),
    Unary("shift", "{x} + {c}", (-1.0, 0.5, 1.0)),
    Unary("clamp", "torch.clamp({x}, {c}, 2.5)", (-1.5, -0.75, 0.25)),
)
"""Elementwise operators; each is chosen only where it changes something and stays in range."""

ACTIVATIONS = tuple(
    op for op in UNARY if op.name in ("relu", "gelu", "gelu_tanh", "silu", "mish", "elu", "leaky_relu", "hardswish")
)
"""Those that networks use between layers."""

BINARY: dict[str, str] = {
    "add": "{x} + {y}",
    "sub": "{x} - {y}",
    "mul": "{x} * {y}",
    "maximum": "torch.maximum({x}, {y})",
    "minimum": "torch.minimum({x}, {y})",
    "lerp": "torch.lerp({x}, {y}, 0.3)",
    "div": "{x} / (torch.abs({y}) + 1.0)",
    "gate": "{x} * torch.sigmoid({y})",
    "where": "torch.where({y} > 0, {x}, {x} * 0.25)",
    "addcmul": "{x} + 0.5 * {y} * {y}",
}
"""Elementwise operators of two tensors."""

REDUCTIONS: dict[str, str] = {
    "sum": "torch.sum({x}, dim=-1)",
    "mean": "torch.mean({x}, dim=-1)",
    "amax": "torch.amax({x}, dim=-1)",
    "amin": "torch.amin({x}, dim=-1)",
    "logsumexp": "torch.logsumexp({x}, dim=-1)",
    "norm": "torch.linalg.vector_norm({x}, dim=-1)",
    "var": "torch.var({x}, dim=-1, unbiased=False)",
    "std": "torch.std({x}, dim=-1)",
    "mean_square": "torch.mean({x} * {x}, dim=-1)",
    "mean_abs": "torch.mean(torch.abs({x}), dim=-1)",
}
"""Over the last dimension."""


@dataclass
class Draft:
    """A task that is being written: lines of its constructor and forward, its inputs, and the present value."""

    rng: random.Random
    inputs: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    constructor: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    count: int = 0

    def input(self, shape: tuple[str, ...]) -> Value:
        """A new argument of forward."""
        name = "xyzuvw"[len(self.inputs)]
        self.inputs.append((name, shape))
        return Value(name, f"in{len(self.inputs) - 1}<{','.join(shape)}>", shape)

    def parameter(self, shape: tuple[str, ...], around: float = 0.0) -> Value:
        """A new parameter, normally distributed ``around`` a value."""
        name = f"p{len(self.constructor)}"
        sizes = ", ".join(shape)
        start = f"{around} + 0.2 * torch.randn({sizes})" if around else f"0.5 * torch.randn({sizes})"
        self.constructor.append(f"self.{name} = nn.Parameter({start})")
        return Value(f"self.{name}", f"parameter<{','.join(shape)}>", shape)

    def module(self, code: str) -> str:
        """A new submodule; what to call it by."""
        name = f"m{len(self.constructor)}"
        self.constructor.append(f"self.{name} = {code}")
        return f"self.{name}"

    def fresh(self) -> str:
        """A name for a new variable."""
        self.count += 1
        return f"t{self.count}"

    def set(self, code: str, value: Value, expression: str = "", **known: object) -> Value:
        """Write ``t = code``; the new value has ``value``'s facts but for those given."""
        name = self.fresh()
        self.forward.append(f"{name} = {code}")
        told = {"name": name, "expression": expression or value.expression, "settled": ""} | known
        return replace(value, **told)  # type: ignore[arg-type]

    def unary(self, value: Value, among: tuple[Unary, ...] = UNARY) -> Value:
        """An elementwise operator that fits."""
        before = value.expression.partition("(")[0]
        op = self.rng.choice([op for op in among if op.fits(value) and op.name != before] or [UNARY[-3]])
        name = self.fresh()
        code, made = op.apply(value, name, self.rng)
        self.forward.append(f"{name} = {code}")
        return made

    def binary(self, value: Value, other: Value, among: tuple[str, ...] = tuple(BINARY)) -> Value:
        """An elementwise operator of two."""
        op = self.rng.choice(among)
        return self.set(
            BINARY[op].format(x=value.name, y=other.name),
            value,
            f"{op}({value.expression},{other.expression})",
            negative=True if op not in ("where", "div", "gate") else value.negative,
            grown=value.grown or other.grown or (op in ("mul", "addcmul") and other.shape == value.shape),
        )

    def chain(self, value: Value, length: int, *, inputs: int = 2) -> Value:
        """Elementwise operators, some of them with another input, a parameter or an earlier value."""
        earlier = [value]
        for _ in range(length):
            drawn = self.rng.random()
            if drawn < 0.6:
                value = self.unary(value)
            elif drawn < 0.75 and len(self.inputs) < inputs:
                shape = self.rng.choice([value.shape, value.shape, value.shape[-1:]])
                value = self.binary(value, self.input(shape))
            elif drawn < 0.9 or len(earlier) < 2:
                op = self.rng.choice(("add", "mul", "maximum", "sub"))
                value = self.binary(value, self.parameter(value.shape[-1:], 1.0 if op == "mul" else 0.0), (op,))
            else:
                other = earlier[self.rng.randrange(len(earlier) - 1)]
                value = self.binary(value, other, ("add", "mul", "sub", "maximum"))
            earlier.append(value)
        return value
