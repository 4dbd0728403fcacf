"""What one element of a pointwise ATen operator is, as C++ expressions shared by the cpu and cuda generators.

Values are computed in the operator's own type, float for the 16-bit types. ``own::`` functions are in the
prelude of each target. Loops, memory and reductions are not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from stitchcuda.recipes.normalise import op_name, tensor

CTYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int32_t",
    torch.int8: "int32_t",
    torch.uint8: "int32_t",
    torch.bool: "bool",
}
"""The C++ type in which values of each element type are computed."""

STORAGE: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float16: "own::float16",
    torch.bfloat16: "own::bfloat16",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}
"""The C++ type that memory holds for each element type."""

NARROW = (torch.float16, torch.bfloat16)
"""Element types that are computed in float."""

WRAPPING = (torch.int8, torch.uint8, torch.int16)
"""Element types that are computed in 32 bits: every result is taken back to its own range."""

Reduction = Literal["sum", "max", "min"]


@dataclass(eq=False)
class Value:
    """One scalar of a kernel: a loaded element, a constant, a computed value, or a row's reduction."""

    ctype: str
    text: str = ""
    """C++ with {0}, {1}, ... for the arguments; a literal for constants."""
    args: tuple[Value, ...] = ()
    source: fx.Node | None = None
    """The tensor a load reads."""
    reduction: Reduction | None = None
    weight: int = 1
    """Rough cost in operations; loads and constants are free."""
    names: list[str] = field(default_factory=list)


UNARY: dict[str, tuple[str, int]] = {
    "relu": ("({0} < {T}(0) ? {T}(0) : {0})", 1),
    "relu6": ("({0} < {T}(0) ? {T}(0) : ({0} > {T}(6) ? {T}(6) : {0}))", 2),
    "sigmoid": ("own::sigmoid({0})", 14),
    "silu": ("({0} / ({T}(1) + own::exp(-{0})))", 15),
    "tanh": ("own::tanh({0})", 22),
    "exp": ("own::exp({0})", 12),
    "expm1": ("own::expm1({0})", 40),
    "log": ("own::log({0})", 18),
    "log1p": ("own::log1p({0})", 24),
    "sqrt": ("own::sqrt({0})", 8),
    "rsqrt": ("({T}(1) / own::sqrt({0}))", 12),
    "reciprocal": ("({T}(1) / {0})", 6),
    "square": ("({0} * {0})", 1),
    "neg": ("(-{0})", 1),
    "abs": ("({0} < {T}(0) ? -{0} : {0})", 1),
    "sin": ("own::sin({0})", 40),
    "cos": ("own::cos({0})", 40),
    "erf": ("own::erf({0})", 25),
    "floor": ("own::floor({0})", 1),
    "ceil": ("own::ceil({0})", 1),
    "trunc": ("own::trunc({0})", 1),
    "round": ("own::rint({0})", 1),
    "sign": ("{T}(({0} > {T}(0)) - ({0} < {T}(0)))", 2),
    "hardswish": ("({0} * own_clip6({0} + {T}(3)) / {T}(6))", 5),
    "hardsigmoid": ("(own_clip6({0} + {T}(3)) / {T}(6))", 4),
    "mish": ("({0} * own::tanh({0} > {T}(20) ? {0} : own::log1p(own::exp({0}))))", 60),
    "log_sigmoid": ("(({0} < {T}(0) ? {0} : {T}(0)) - own::log1p(own::exp({0} < {T}(0) ? {0} : -{0})))", 40),
    "selu": (
        "({0} > {T}(0) ? {T}(1.0507009873554805) * {0} : {T}(1.7580993408473766) * (own::exp({0}) - {T}(1)))",
        16,
    ),
    "clone": ("{0}", 0),
    "contiguous": ("{0}", 0),
}
CLIP6 = "({x} < {T}(0) ? {T}(0) : ({x} > {T}(6) ? {T}(6) : {x}))"

BINARY: dict[str, str] = {
    "mul": "({0} * {1})",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
}
OF_TWO: dict[Any, str] = {torch.ops.aten.min.other: "minimum", torch.ops.aten.max.other: "maximum"}
"""``min`` and ``max`` of two tensors, which share a name with reductions."""
COMPARE: dict[str, str] = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGICAL: dict[str, str] = {
    "logical_and": "&&", "logical_or": "||", "bitwise_and": "&&", "bitwise_or": "||", "__and__": "&&", "__or__": "||",
}  # fmt: skip
CASTS = {"to", "_to_copy", "type_as", "float", "half", "bfloat16", "double"}
SPECIAL = {
    "add", "sub", "rsub", "div", "gelu", "clamp", "clamp_min", "clamp_max", "hardtanh", "leaky_relu", "elu",
    "softplus", "pow", "where", "masked_fill", "addcmul", "addcdiv", "lerp", "logical_not", "bitwise_not", "copy_",
    "true_divide", "multiply", "divide", "subtract", "threshold", "celu",
}  # fmt: skip
NOT_VECTOR_ON_CPU = {"expm1", "sin", "cos"}
"""Library calls in a scalar loop on cpu, where eager has vector code."""

POINTWISE = UNARY.keys() | BINARY.keys() | COMPARE.keys() | LOGICAL.keys() | CASTS | SPECIAL


def is_pointwise(node: fx.Node, target: str) -> bool:
    """True when every element of the node's result is an expression that this module can write."""
    name = OF_TWO.get(node.target, op_name(node))
    value = tensor(node)
    if name not in POINTWISE or value is None or value.dtype not in CTYPES or value.numel() == 0:
        return False
    if target == "cpu" and (name in NOT_VECTOR_ON_CPU or (name == "pow" and not _simple_power(node))):
        return False
    tensors = [tensor(arg) for arg in node.all_input_nodes]
    if any(arg is None or arg.dtype not in CTYPES for arg in tensors):
        return False
    if name in ("contiguous", "to") and _is_view(node):
        return False
    floating = value.dtype.is_floating_point
    if name in UNARY and not floating and name not in ("clone", "contiguous", "neg", "abs", "relu", "square"):
        return False
    if name == "div" and (node.kwargs.get("rounding_mode") is not None or len(node.args) > 2 or not floating):
        return False
    if name == "pow" and not (floating and isinstance(node.args[0], fx.Node)):
        return False
    if name == "round" and (node.kwargs or len(node.args) > 1):
        return False
    if name in LOGICAL or name in ("logical_not", "bitwise_not"):
        return all(arg is not None and arg.dtype == torch.bool for arg in tensors)
    if name in CASTS and name != "type_as" and not any(isinstance(arg, torch.dtype) for arg in _cast_arguments(node)):
        return False
    if name == "gelu" and not floating:
        return False
    return not (name == "copy_" and tensors[0] is not None and tensors[0].shape != value.shape)


def _cast_arguments(node: fx.Node) -> list[Any]:
    if op_name(node) in ("float", "half", "bfloat16", "double"):
        return [torch.float32]
    return [*node.args[1:], *node.kwargs.values()]


def _is_view(node: fx.Node) -> bool:
    """``contiguous`` of a contiguous tensor and ``to`` without a change return their argument itself."""
    value, before = tensor(node), tensor(node.args[0])
    assert value is not None
    return before is not None and value.dtype == before.dtype and value.stride() == before.stride()


def _simple_power(node: fx.Node) -> bool:
    return isinstance(node.args[1], int | float) and float(node.args[1]) in (1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, -2.0)


class Expressions:
    """Writes values for nodes; ``resolve`` gives the value of a tensor argument (a member's, or a load)."""

    def __init__(self, resolve: Callable[[fx.Node], Value]) -> None:
        self.resolve = resolve

    def operand(self, argument: Any, ctype: str) -> Value:
        """A node or a number as a value of ``ctype``."""
        if isinstance(argument, fx.Node):
            return cast(self.resolve(argument), ctype)
        return constant(argument, ctype)

    def pointwise(self, node: fx.Node) -> Value:
        """The value of one element of a node that ``is_pointwise`` accepts."""
        out = tensor(node)
        assert out is not None
        value = self._computed(node, out)
        if out.dtype not in WRAPPING or value.source is not None:
            return value
        return apply(f"{{T}}(static_cast<{STORAGE[out.dtype]}>({{0}}))", CTYPES[out.dtype], value)

    def _computed(self, node: fx.Node, out: torch.Tensor) -> Value:
        ctype = CTYPES[out.dtype]
        name = OF_TWO.get(node.target, op_name(node))
        args = node.args
        if name in UNARY:
            text, weight = UNARY[name]
            return apply(text, ctype, self.operand(args[0], ctype), weight=weight)
        if name in CASTS:
            return self._cast(args[0], out.dtype)
        if name == "copy_":
            return self.operand(args[1], ctype)
        if name in BINARY:
            return apply(BINARY[name], ctype, *(self.operand(arg, ctype) for arg in args[:2]))
        if name in COMPARE:
            common = CTYPES[_common(args[0], args[1])]
            left, right = (self.operand(arg, common) for arg in args[:2])
            return apply(f"({{0}} {COMPARE[name]} {{1}})", "bool", left, right)
        if name in LOGICAL:
            left, right = (self.operand(arg, "bool") for arg in args[:2])
            return apply(f"({{0}} {LOGICAL[name]} {{1}})", "bool", left, right)
        special: Callable[[fx.Node, str], Value] = getattr(self, f"_{name}")
        return special(node, ctype)

    def _cast(self, argument: Any, dtype: torch.dtype) -> Value:
        """A cast that the program asks for rounds, though 16-bit values are otherwise computed in float."""
        before = tensor(argument)
        if before is None:
            return self.operand(argument, CTYPES[dtype])
        value = self.operand(argument, CTYPES[before.dtype])
        if before.dtype == dtype:
            return value
        narrow = [kind for kind in (before.dtype, dtype) if kind in NARROW]
        if value.source is not None and narrow == [before.dtype]:
            narrow = []  # as it lies in memory
        for kind in narrow:
            value = apply(f"own::load(own::store<{STORAGE[kind]}>({{0}}))", "float", cast(value, "float"), weight=3)
        return cast(value, CTYPES[dtype])

    def _scaled(self, node: fx.Node, ctype: str, position: int) -> Value:
        """The operand that ``alpha`` multiplies."""
        value = self.operand(node.args[position], ctype)
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        return value if alpha == 1 else apply("({0} * {1})", ctype, value, constant(alpha, ctype))

    def _add(self, node: fx.Node, ctype: str) -> Value:
        return apply("({0} + {1})", ctype, self.operand(node.args[0], ctype), self._scaled(node, ctype, 1))

    def _sub(self, node: fx.Node, ctype: str) -> Value:
        return apply("({0} - {1})", ctype, self.operand(node.args[0], ctype), self._scaled(node, ctype, 1))

    _subtract = _sub

    def _rsub(self, node: fx.Node, ctype: str) -> Value:
        return apply("({1} - {0})", ctype, self._scaled(node, ctype, 0), self.operand(node.args[1], ctype))

    def _div(self, node: fx.Node, ctype: str) -> Value:
        return apply("({0} / {1})", ctype, *(self.operand(arg, ctype) for arg in node.args[:2]), weight=6)

    _true_divide = _divide = _div

    def _multiply(self, node: fx.Node, ctype: str) -> Value:
        return apply("({0} * {1})", ctype, *(self.operand(arg, ctype) for arg in node.args[:2]))

    def _gelu(self, node: fx.Node, ctype: str) -> Value:
        x = self.operand(node.args[0], ctype)
        if node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none") == "tanh":
            inner = apply("({T}(0.7978845608028654) * ({0} + {T}(0.044715) * {0} * {0} * {0}))", ctype, x, weight=5)
            return apply("({T}(0.5) * {0} * ({T}(1) + own::tanh({1})))", ctype, x, inner, weight=25)
        return apply("({0} * {T}(0.5) * ({T}(1) + own::erf({0} * {T}(0.7071067811865476))))", ctype, x, weight=30)

    def _clamp(self, node: fx.Node, ctype: str) -> Value:
        low = node.kwargs.get("min", node.args[1] if len(node.args) > 1 else None)
        high = node.kwargs.get("max", node.args[2] if len(node.args) > 2 else None)
        value = self.operand(node.args[0], ctype)
        if low is not None:
            value = apply("({0} < {1} ? {1} : {0})", ctype, value, self.operand(low, ctype))
        if high is not None:
            value = apply("({0} > {1} ? {1} : {0})", ctype, value, self.operand(high, ctype))
        return value

    def _clamp_min(self, node: fx.Node, ctype: str) -> Value:
        return apply("({0} < {1} ? {1} : {0})", ctype, *(self.operand(arg, ctype) for arg in node.args[:2]))

    def _clamp_max(self, node: fx.Node, ctype: str) -> Value:
        return apply("({0} > {1} ? {1} : {0})", ctype, *(self.operand(arg, ctype) for arg in node.args[:2]))

    def _hardtanh(self, node: fx.Node, ctype: str) -> Value:
        low, high = _number(node, 1, "min_val", -1.0), _number(node, 2, "max_val", 1.0)
        x, a, b = self.operand(node.args[0], ctype), constant(low, ctype), constant(high, ctype)
        return apply("({0} < {1} ? {1} : ({0} > {2} ? {2} : {0}))", ctype, x, a, b, weight=2)

    def _leaky_relu(self, node: fx.Node, ctype: str) -> Value:
        slope = constant(_number(node, 1, "negative_slope", 0.01), ctype)
        return apply("({0} > {T}(0) ? {0} : {0} * {1})", ctype, self.operand(node.args[0], ctype), slope)

    def _threshold(self, node: fx.Node, ctype: str) -> Value:
        limit, other = constant(node.args[1], ctype), constant(node.args[2], ctype)
        return apply("({0} <= {1} ? {2} : {0})", ctype, self.operand(node.args[0], ctype), limit, other)

    def _elu(self, node: fx.Node, ctype: str) -> Value:
        alpha, scale, inner = (
            constant(_number(node, i, name, 1.0), ctype) for i, name in ((1, "alpha"), (2, "scale"), (3, "input_scale"))
        )
        text = "({0} > {T}(0) ? {0} * {2} : (own::exp({0} * {3}) - {T}(1)) * {1} * {2})"
        return apply(text, ctype, self.operand(node.args[0], ctype), alpha, scale, inner, weight=16)

    def _celu(self, node: fx.Node, ctype: str) -> Value:
        alpha = constant(_number(node, 1, "alpha", 1.0), ctype)
        text = "({0} > {T}(0) ? {0} : (own::exp({0} / {1}) - {T}(1)) * {1})"
        return apply(text, ctype, self.operand(node.args[0], ctype), alpha, weight=20)

    def _softplus(self, node: fx.Node, ctype: str) -> Value:
        beta = constant(_number(node, 1, "beta", 1.0), ctype)
        threshold = constant(_number(node, 2, "threshold", 20.0), ctype)
        text = "({0} * {1} > {2} ? {0} : own::log1p(own::exp({0} * {1})) / {1})"
        return apply(text, ctype, self.operand(node.args[0], ctype), beta, threshold, weight=40)

    def _pow(self, node: fx.Node, ctype: str) -> Value:
        x, exponent = self.operand(node.args[0], ctype), node.args[1]
        if isinstance(exponent, int | float):
            powers = {
                1.0: "{0}", 2.0: "({0} * {0})", 3.0: "({0} * {0} * {0})", 0.5: "own::sqrt({0})",
                -0.5: "({T}(1) / own::sqrt({0}))", -1.0: "({T}(1) / {0})", -2.0: "({T}(1) / ({0} * {0}))",
            }  # fmt: skip
            if float(exponent) == 4.0:
                square = apply("({0} * {0})", ctype, x)
                return apply("({0} * {0})", ctype, square)
            if float(exponent) in powers:
                return apply(powers[float(exponent)], ctype, x, weight=4)
        return apply("own::pow({0}, {1})", ctype, x, self.operand(exponent, ctype), weight=60)

    def _where(self, node: fx.Node, ctype: str) -> Value:
        condition, left, right = node.args[:3]
        return apply(
            "({0} ? {1} : {2})",
            ctype,
            self.operand(condition, "bool"),
            self.operand(left, ctype),
            self.operand(right, ctype),
        )

    def _masked_fill(self, node: fx.Node, ctype: str) -> Value:
        x, mask, value = node.args[:3]
        return apply(
            "({0} ? {1} : {2})", ctype, self.operand(mask, "bool"), self.operand(value, ctype), self.operand(x, ctype)
        )

    def _addcmul(self, node: fx.Node, ctype: str) -> Value:
        x, a, b = (self.operand(arg, ctype) for arg in node.args[:3])
        return apply("({0} + {3} * {1} * {2})", ctype, x, a, b, constant(node.kwargs.get("value", 1), ctype), weight=2)

    def _addcdiv(self, node: fx.Node, ctype: str) -> Value:
        x, a, b = (self.operand(arg, ctype) for arg in node.args[:3])
        return apply("({0} + {3} * {1} / {2})", ctype, x, a, b, constant(node.kwargs.get("value", 1), ctype), weight=7)

    def _lerp(self, node: fx.Node, ctype: str) -> Value:
        a, b, weight = (self.operand(arg, ctype) for arg in node.args[:3])
        text = "({2} < {T}(0.5) ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * ({T}(1) - {2}))"
        return apply(text, ctype, a, b, weight, weight=4)

    def _logical_not(self, node: fx.Node, ctype: str) -> Value:
        return apply("(!{0})", "bool", self.operand(node.args[0], "bool"))

    _bitwise_not = _logical_not


def apply(text: str, ctype: str, *args: Value, weight: int = 1) -> Value:
    """A computed value; ``{T}`` in the text is its type."""
    if "own_clip6(" in text:
        inner = "({0} + {T}(3))"
        text = text.replace("own_clip6({0} + {T}(3))", CLIP6.replace("{x}", inner))
    return Value(ctype, text.replace("{T}", ctype), args, weight=weight)


def cast(value: Value, ctype: str) -> Value:
    """The value in another type, as C++ converts it (towards zero from floating to integer)."""
    if value.ctype == ctype:
        return value
    text = "({0} != 0)" if ctype == "bool" else f"static_cast<{ctype}>({{0}})"
    return Value(ctype, text, (value,), weight=1)


def constant(number: Any, ctype: str) -> Value:
    """A literal of ``ctype``."""
    return Value(ctype, literal(number, ctype), weight=0)


def literal(number: Any, ctype: str) -> str:
    """A number as C++ source."""
    if ctype == "bool":
        return "true" if number else "false"
    if ctype not in ("float", "double"):
        return f"{ctype}({int(number)})"
    value = float(number)
    if math.isnan(value):
        return f"{ctype}(NAN)"
    if math.isinf(value) or (ctype == "float" and abs(value) > 3.4028234663852886e38):
        return f"{ctype}({'-' if value < 0 else ''}INFINITY)"
    text = f"{value:.9g}" if ctype == "float" else repr(value)
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return f"{text}f" if ctype == "float" else text


def _number(node: fx.Node, position: int, name: str, default: float) -> float:
    value = node.kwargs.get(name, node.args[position] if len(node.args) > position else default)
    assert isinstance(value, int | float)
    return float(value)


def _common(left: Any, right: Any) -> torch.dtype:
    def plain(item: Any) -> Any:
        value = tensor(item)
        return item if value is None else torch.empty(value.shape, dtype=value.dtype, device="meta")

    return torch.result_type(plain(left), plain(right))
