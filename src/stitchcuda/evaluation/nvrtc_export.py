"""A KernelProgram as native sources: the same device code behind one C launcher that makes the plan's launches, with
the plan's expressions in C++. What was tuned becomes a Program's file and is then judged like any other."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from stitchcuda import syntax
from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.nvrtc import library_head
from stitchcuda.evaluation.nvrtc_plan import Expression, KernelLaunch, KernelProgram, evaluate
from stitchcuda.program.model import Argument, Launcher

C_TYPES = {
    "int32": "int",
    "int64": "long long",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}

_HELPERS = """
namespace launch_plan {
inline long long min(long long a) { return a; }
inline long long max(long long a) { return a; }
template <class... R> long long min(long long a, long long b, R... rest) { return min(a < b ? a : b, rest...); }
template <class... R> long long max(long long a, long long b, R... rest) { return max(a > b ? a : b, rest...); }
inline long long floor_div(long long a, long long b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
inline long long modulo(long long a, long long b) { return a - floor_div(a, b) * b; }
inline long long ceil_div(long long a, long long b) { return -floor_div(-a, b); }
inline long long next_power_of_two(long long n) {
  long long power = 1;
  while (power < n) power *= 2;
  return power;
}
}  // namespace launch_plan
"""

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def native_sources(
    program: KernelProgram, sizes: Sequence[str], *, name: str = "run", file: str = "kernels.cu"
) -> tuple[dict[str, str], Launcher]:
    """Files of a native Program and the launcher that they define: ``NAME(buffers..., sizes..., stream)``, buffers in
    the plan's order (scratch buffers, too, are given by the caller), sizes as int64 in the order of ``sizes``.

    Raises ProgramError for a plan that ``nvrtc_plan.resolve`` would refuse whatever the sizes, and for a register
    limit, which native sources state by ``__launch_bounds__``.
    """
    if program.code.max_registers is not None:
        raise ProgramError("a limit of registers is an option of the compiler here; use __launch_bounds__ instead")
    known = {key: int(value) for key, value in program.code.defines.items() if str(value).lstrip("-").isdigit()}
    names = dict.fromkeys([*sizes, *known], 1)
    arguments = [
        Argument(name=key, dtype=buffer.dtype, role="input" if buffer.role == "input" else "output")
        for key, buffer in program.plan.buffers.items()
    ]
    arguments += [Argument(name=size, kind="scalar", dtype="int64") for size in sizes]
    parameters = [f"void* {key}" for key in program.plan.buffers] + [f"long long {size}" for size in sizes]
    body = "".join(_launch(launch, program, names) for launch in program.plan.launches)
    head = library_head(program.code.source)
    macros = "".join(f"#define {key} {value}\n" for key, value in sorted(program.code.defines.items()))
    text = (
        f"#include <cuda_runtime.h>\n{head}{macros}{program.code.source[len(head) :]}\n{_HELPERS}\n"
        f'extern "C" int {name}({", ".join(parameters)}, void* stream) {{\n'
        f"  cudaError_t error = cudaSuccess;\n{body}  return error;\n}}\n"
    )
    return {file: text, **program.code.headers}, Launcher(name=name, source=file, arguments=arguments)


def _launch(launch: KernelLaunch, program: KernelProgram, names: Mapping[str, int]) -> str:
    if launch.kernel not in program.code.kernels:
        raise ProgramError(f"the plan launches {launch.kernel}, which is not among {list(program.code.kernels)}")
    values = []
    for place, argument in enumerate(launch.arguments):
        if argument.buffer and argument.buffer not in program.plan.buffers:
            raise ProgramError(f"{launch.kernel} takes the buffer {argument.buffer}, which the plan does not have")
        if argument.buffer:
            values.append(f"    void* a{place} = {argument.buffer};\n")
        elif isinstance(argument.value, float):
            values.append(f"    {C_TYPES[argument.dtype]} a{place} = {argument.value!r};\n")
        else:
            values.append(f"    {C_TYPES[argument.dtype]} a{place} = {in_cpp(argument.value, names)};\n")
    addresses = ", ".join(f"&a{place}" for place in range(len(launch.arguments))) or "nullptr"
    grid, block = (", ".join(in_cpp(one, names) for one in dimensions) for dimensions in (launch.grid, launch.block))
    return (
        f"  if (error == cudaSuccess) {{\n{''.join(values)}    void* all[] = {{{addresses}}};\n"
        f"    const void* kernel = (const void*)({launch.kernel});\n"
        f"    const long long shared = {in_cpp(launch.shared_bytes, names)};\n"
        "    if (shared > 48 << 10)\n"
        "      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);\n"
        "    if (error == cudaSuccess)\n"
        f"      error = cudaLaunchKernel(kernel, dim3({grid}), dim3({block}), all, shared, (cudaStream_t)stream);\n"
        "  }\n"
    )


def in_cpp(expression: Expression, names: Mapping[str, int]) -> str:
    """An integer expression as C++ of the same value; ``names`` are those it may use. Raises ProgramError as
    ``nvrtc_plan.evaluate`` does."""
    if isinstance(expression, str):
        try:
            evaluate(expression, names)
        except ProgramError as error:
            if "divides by zero" not in str(error):
                raise
        return _cpp(syntax.parse_expression(expression.strip()).body)
    return f"{expression}LL"


def _cpp(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=int(number)):
            return f"{number}LL"
        case ast.Name(id=name):
            return f"(long long){name}"
        case ast.UnaryOp(operand=operand):
            return f"(-{_cpp(operand)})"
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return f"launch_plan::floor_div({_cpp(left)}, {_cpp(right)})"
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return f"launch_plan::modulo({_cpp(left)}, {_cpp(right)})"
        case ast.BinOp(left=left, op=op, right=right):
            return f"({_cpp(left)} {_OPERATORS[type(op)]} {_cpp(right)})"
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return f"launch_plan::{name}({', '.join(map(_cpp, arguments))})"
        case ast.IfExp(test=ast.Compare(left=left, ops=[op], comparators=[right]), body=body, orelse=other):
            test = f"{_cpp(left)} {_COMPARISONS[type(op)]} {_cpp(right)}"
            return f"({test} ? {_cpp(body)} : {_cpp(other)})"
    raise ProgramError("an expression is not understood")
