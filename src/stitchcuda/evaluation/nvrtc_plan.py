"""What to launch: buffers, and launches whose grids, blocks and arguments are integer expressions of sizes. Data and
arithmetic only; compiling is in ``nvrtc``, launching in ``nvrtc_runner``, both for many variants in ``nvrtc_tune``.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda import syntax
from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.nvrtc import KernelSource

Expression = int | str
"""An integer, or arithmetic over sizes: ``ceil_div(n, BLOCK) * 2``. See ``evaluate``."""

ElementType = Literal["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"]

ELEMENT_BYTES: dict[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}

MOST_THREADS = 1024
MOST_GRID = (2**31 - 1, 65535, 65535)
MOST_SHARED_BYTES = 227 << 10
MOST_BUFFER_BYTES = 1 << 40

EXPRESSION_CHARACTERS = 500
LARGEST = 2**62


class Buffer(BaseModel):
    """Device memory that launches read and write."""

    model_config = ConfigDict(frozen=True)

    elements: Expression
    dtype: ElementType = "float32"
    role: Literal["input", "output", "scratch"] = "scratch"


class KernelArgument(BaseModel):
    """One argument of a kernel, in order: a buffer's address, or a number."""

    model_config = ConfigDict(frozen=True)

    buffer: str = Field(default="", description="name of a buffer; empty: a number")
    value: Expression | float = Field(default=0, description="a number, or an expression where dtype is an integer")
    dtype: Literal["int32", "int64", "uint32", "uint64", "float32", "float64"] = "int32"


class KernelLaunch(BaseModel):
    """One launch; launches of a plan follow each other on one stream."""

    model_config = ConfigDict(frozen=True)

    kernel: str = Field(description="name expression, one of KernelSource.kernels")
    grid: tuple[Expression, Expression, Expression] = (1, 1, 1)
    block: tuple[Expression, Expression, Expression] = (256, 1, 1)
    shared_bytes: Expression = Field(default=0, description="dynamic shared memory of a block")
    arguments: tuple[KernelArgument, ...] = ()


class LaunchPlan(BaseModel):
    """How the kernels of one source compute outputs from inputs."""

    model_config = ConfigDict(frozen=True)

    buffers: dict[str, Buffer]
    launches: tuple[KernelLaunch, ...]


class KernelProgram(BaseModel):
    """A Program of device code alone: what is launched, and with what, is data, so that the harness launches it."""

    model_config = ConfigDict(frozen=True)

    code: KernelSource
    plan: LaunchPlan
    name: str = Field(default="", description="for people, such as 'block=256 tile=4'")


class Launch(BaseModel):
    """A launch with all its numbers; ``arguments`` as (kind, value): a buffer's name, or a C type and a number."""

    model_config = ConfigDict(frozen=True)

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[tuple[str, str | int | float], ...]


class Resolved(BaseModel):
    """A plan for given sizes: bytes and role of each buffer, and the launches."""

    model_config = ConfigDict(frozen=True)

    buffers: dict[str, tuple[int, str]]
    launches: tuple[Launch, ...]


def resolve(program: KernelProgram, sizes: Mapping[str, int]) -> Resolved:
    """The plan's numbers for ``sizes``; the source's integer macros count as sizes too.

    Raises ProgramError, in a sentence, for an expression that is none, a kernel or buffer that is not there, and a
    launch that no device takes.
    """
    known = {name: int(value) for name, value in program.code.defines.items() if str(value).lstrip("-").isdigit()}
    known |= sizes
    buffers: dict[str, tuple[int, str]] = {}
    for name, buffer in program.plan.buffers.items():
        count = evaluate(buffer.elements, known)
        size = count * ELEMENT_BYTES[buffer.dtype]
        if not 0 < size <= MOST_BUFFER_BYTES:
            raise ProgramError(f"buffer {name} has {count} elements; it needs at least one, and at most 1 TiB")
        buffers[name] = (size, buffer.role)
    if not program.plan.launches:
        raise ProgramError("the plan launches nothing")
    return Resolved(buffers=buffers, launches=tuple(_launch(each, program, known) for each in program.plan.launches))


def _launch(launch: KernelLaunch, program: KernelProgram, sizes: Mapping[str, int]) -> Launch:
    name = launch.kernel
    if name not in program.code.kernels:
        raise ProgramError(f"the plan launches {name}, which is not among the kernels {list(program.code.kernels)}")
    grid, block = (_triple(dimensions, sizes) for dimensions in (launch.grid, launch.block))
    shared = evaluate(launch.shared_bytes, sizes)
    if min(block) < 1 or math.prod(block) > MOST_THREADS:
        raise ProgramError(f"{name} asks for a block of {block}: 1 to {MOST_THREADS} threads are possible")
    if min(grid) < 1 or any(size > most for size, most in zip(grid, MOST_GRID, strict=True)):
        raise ProgramError(f"{name} asks for a grid of {grid}: 1 to {MOST_GRID} blocks are possible")
    if not 0 <= shared <= MOST_SHARED_BYTES:
        raise ProgramError(f"{name} asks for {shared} bytes of shared memory; 0 to {MOST_SHARED_BYTES} are possible")
    arguments = tuple(_argument(argument, name, program, sizes) for argument in launch.arguments)
    return Launch(kernel=name, grid=grid, block=block, shared_bytes=shared, arguments=arguments)


def _triple(dimensions: tuple[Expression, Expression, Expression], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    one, two, three = dimensions
    return evaluate(one, sizes), evaluate(two, sizes), evaluate(three, sizes)


def _argument(
    argument: KernelArgument, kernel: str, program: KernelProgram, sizes: Mapping[str, int]
) -> tuple[str, str | int | float]:
    if argument.buffer:
        if argument.buffer not in program.plan.buffers:
            raise ProgramError(f"{kernel} takes the buffer {argument.buffer}, which the plan does not have")
        return "buffer", argument.buffer
    if argument.dtype.startswith("float"):
        if isinstance(argument.value, str):
            return argument.dtype, float(evaluate(argument.value, sizes))
        return argument.dtype, float(argument.value)
    if isinstance(argument.value, float):
        raise ProgramError(f"{kernel} takes {argument.value} as {argument.dtype}, which is an integer")
    value = evaluate(argument.value, sizes)
    bits, signed = int(argument.dtype[-2:]), not argument.dtype.startswith("u")
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not least <= value <= most:
        raise ProgramError(f"{kernel} takes {value} as {argument.dtype}, which does not hold it")
    return argument.dtype, value


def _ceil_div(one: int, two: int) -> int:
    return -(-one // two)


def _next_power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "ceil_div": _ceil_div,
    "next_power_of_two": _next_power_of_two,
}
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluate(expression: Expression, sizes: Mapping[str, int]) -> int:
    """An integer expression's value: names of sizes, ``+ - * // %``, ``min``, ``max``, ``ceil_div(a, b)``,
    ``next_power_of_two(n)``, and ``a if n > 4 else b``.

    Raises ProgramError for anything else, unknown names, division by zero, and values beyond 2^62.
    """
    if isinstance(expression, int):
        return expression
    if len(expression) > EXPRESSION_CHARACTERS:
        raise ProgramError(f"an expression has {len(expression)} characters; {EXPRESSION_CHARACTERS} are allowed")
    try:
        tree = syntax.parse_expression(expression.strip())
        return _value(tree.body, sizes, expression)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ProgramError(f"'{expression}' is no integer expression") from None
    except ZeroDivisionError:
        raise ProgramError(f"'{expression}' divides by zero for {dict(sizes)}") from None


def _value(node: ast.expr, sizes: Mapping[str, int], whole: str) -> int:
    result: int
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            result = number
        case ast.Name(id=name):
            if name not in sizes:
                raise ProgramError(f"'{whole}' names {name}; known are {', '.join(sorted(sizes)) or 'no sizes'}")
            result = sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand, sizes, whole)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result = _OPERATORS[type(op)](_value(left, sizes, whole), _value(right, sizes, whole))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            values = [_value(argument, sizes, whole) for argument in arguments]
            try:
                result = _FUNCTIONS[name](*values)
            except TypeError:
                raise ProgramError(f"'{whole}' calls {name} with {len(values)} arguments") from None
        case ast.IfExp(test=ast.Compare(left=left, ops=[op], comparators=[right]), body=body, orelse=other) if (
            type(op) in _COMPARISONS
        ):
            holds = _COMPARISONS[type(op)](_value(left, sizes, whole), _value(right, sizes, whole))
            result = _value(body if holds else other, sizes, whole)
        case _:
            raise ProgramError(
                f"'{whole}' is no integer expression; see what is allowed: + - * // %, min, max, ceil_div"
            )
    if abs(result) > LARGEST:
        raise ProgramError(f"'{whole}' is beyond 2^62")
    return result
