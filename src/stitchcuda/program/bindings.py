"""Source text of the module ``bindings``: one checked Python function per launcher of a manifest.

The text needs torch and the standard library alone, because it runs where the Program runs. A call checks
dtype, layout, device and alignment, refuses autograd, and goes straight to the C function with the current
stream; under torch.compile and torch.export it goes through a registered operator instead.
"""

from __future__ import annotations

import hashlib

from stitchcuda.program.model import Argument, Launcher, Manifest

SCALARS: dict[str, tuple[str, str, str]] = {
    "float32": ("c_float", "float", "float"),
    "float64": ("c_double", "float", "double"),
    "int8": ("c_int8", "int", "int8_t"),
    "uint8": ("c_uint8", "int", "uint8_t"),
    "int16": ("c_int16", "int", "int16_t"),
    "int32": ("c_int32", "int", "int32_t"),
    "int64": ("c_int64", "int", "int64_t"),
    "bool": ("c_bool", "bool", "bool"),
}
"""Scalar dtype to ctypes class, schema type and C type. Half precisions have no C scalar: pass float32."""

_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
}

_HEAD = '''"""Checked Python functions for the launchers in {library}; generated from manifest.json.

Arguments are the launcher's, in C order, without the stream; outputs are passed in, already allocated.
"""

import ctypes
import os

import torch
from torch.profiler import record_function

PROFILE = False
"""True wraps each launch in a profiler range named own::NAME."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_library_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), {library!r})
_library = ctypes.CDLL(_library_path)
_operators = torch.library.Library({namespace!r}, "FRAGMENT")


def _refuse(launcher, name, value, want):
    if isinstance(value, torch.Tensor):
        got = (
            f"{{value.dtype}} of shape {{tuple(value.shape)}}, strides {{value.stride()}}, on {{value.device}}, "
            f"address modulo 256 = {{value.data_ptr() % 256}}"
        )
    else:
        got = repr(value)
    raise ValueError(f"{{launcher}}: argument {{name}} must be {{want}}; got {{got}}")


def _refuse_grad(launcher, name):
    raise RuntimeError(
        f"{{launcher}} has no gradient, but grad mode is on and {{name}} requires grad; "
        "call it under torch.no_grad()"
    )


def _define(name, schema, implementation):
    if not hasattr(torch.ops.{namespace}, name):
        _operators.define(name + schema)
        _operators.impl(name, implementation, {key!r})
        torch.library.register_fake({namespace_prefix!r} + name, lambda *arguments: None)
    return getattr(torch.ops.{namespace}, name).default
'''

_HEAD_CUDA = """
try:
    _raw_stream = torch._C._cuda_getCurrentRawStream
except AttributeError:

    def _raw_stream(index):
        return torch.cuda.current_stream(index).cuda_stream


def _fail(launcher, code):
    runtime = torch.cuda.cudart()
    text = runtime.cudaGetErrorString(runtime.cudaError(code))
    raise RuntimeError(f"{launcher} failed with CUDA error {code}: {text}")
"""

_HEAD_CPU = """
def _fail(launcher, code):
    raise RuntimeError(f"{launcher} failed with code {code}")
"""


def render(manifest: Manifest, library: str) -> str:
    """Text of ``bindings.py`` for a library file that lies in the same folder.

    The operators' namespace depends on the manifest and the library's name, so that several Programs can be
    loaded in one process.
    """
    namespace = operator_namespace(manifest, library)
    head = _HEAD.format(
        library=library,
        namespace=namespace,
        namespace_prefix=f"{namespace}::",
        key="CUDA" if manifest.target == "cuda" else "CPU",
    )
    parts = [head, _HEAD_CUDA if manifest.target == "cuda" else _HEAD_CPU]
    parts += [_function(launcher, manifest.target == "cuda") for launcher in manifest.launchers]
    return "\n".join(parts)


def operator_namespace(manifest: Manifest, library: str) -> str:
    """Namespace of the registered operators, a C identifier."""
    key = hashlib.sha256(f"{manifest.model_dump_json()}\0{library}".encode()).hexdigest()[:12]
    return f"stitchcuda_{key}"


def _function(launcher: Launcher, cuda: bool) -> str:
    name = launcher.name
    arguments = launcher.arguments
    tensors = [argument for argument in arguments if argument.kind == "tensor"]
    names = ", ".join(argument.name for argument in arguments)
    types = [_ctype(argument) for argument in arguments] + ["ctypes.c_void_p"]
    lines = [
        "",
        f"_c_{name} = _library.{name}",
        f"_c_{name}.argtypes = [{', '.join(types)}]",
        f"_c_{name}.restype = ctypes.c_int",
        "",
        "",
        f"def _launch_{name}({names}):",
    ]
    body: list[str] = []
    for argument in arguments:
        body += _check_tensor(name, argument, cuda) if argument.kind == "tensor" else _check_scalar(name, argument)
    passed = [f"_p_{a.name}" if a.kind == "tensor" else a.name for a in arguments]
    if cuda:
        body += _call_cuda(name, tensors, passed)
    else:
        body.append(f"_code = _c_{name}({', '.join([*passed, 'None'])})")
    body += ["if _code:", f"    _fail({name!r}, _code)"]
    lines += [f"    {line}" for line in body]
    lines += [
        "",
        "",
        f"_operator_{name} = _define({name!r}, {_schema(launcher)!r}, _launch_{name})",
        "",
        "",
        f"def {name}({names}):",
        *_describe(launcher),
    ]
    readable = [argument for argument in tensors if argument.role != "output"]
    if readable:
        lines.append("    if torch.is_grad_enabled():")
        for argument in readable:
            present = f"{argument.name} is not None and " if argument.optional else ""
            lines += [
                f"        if {present}{argument.name}.requires_grad:",
                f"            _refuse_grad({name!r}, {argument.name!r})",
            ]
    first = next((argument for argument in tensors if not argument.optional), None)
    odd = f" or type({first.name}) not in _PLAIN" if first is not None else ""
    lines += [
        f"    if torch.compiler.is_compiling(){odd}:",
        f"        _operator_{name}({names})",
        "    elif PROFILE:",
        f'        with record_function("own::{name}"):',
        f"            _launch_{name}({names})",
        "    else:",
        f"        _launch_{name}({names})",
        "",
    ]
    return "\n".join(lines)


def _check_tensor(launcher: str, argument: Argument, cuda: bool) -> list[str]:
    """Statements that leave the argument's address in ``_p_NAME``."""
    name = argument.name
    tests = [
        f"{name}.dtype is not torch.{argument.dtype}",
        f"not {name}.is_{'cuda' if cuda else 'cpu'}",
    ]
    if argument.layout == "contiguous":
        tests.append(f"not {name}.is_contiguous()")
    elif argument.layout == "channels_last":
        kind = f"torch.channels_last if {name}.dim() == 4 else torch.channels_last_3d"
        tests.append(f"{name}.dim() not in (4, 5) or not {name}.is_contiguous(memory_format={kind})")
    lines = [f"_p_{name} = {name}.data_ptr()"]
    if argument.alignment > 1:
        tests.append(f"_p_{name} % {argument.alignment}")
    layout = "" if argument.layout == "any" else f"{argument.layout} "
    want = f"a {layout}{argument.dtype} tensor on {'cuda' if cuda else 'cpu'}, aligned to {argument.alignment} bytes"
    refuse = f"_refuse({launcher!r}, {name!r}, {name}, {want!r})"
    lines += [f"if {' or '.join(tests)}:", f"    {refuse}"]
    if argument.optional:
        return [f"_p_{name} = None", f"if {name} is not None:", *(f"    {line}" for line in lines)]
    return lines


def _check_scalar(launcher: str, argument: Argument) -> list[str]:
    if argument.dtype not in _RANGES:
        return []
    low, high = _RANGES[argument.dtype]
    refuse = f"_refuse({launcher!r}, {argument.name!r}, {argument.name}, 'an {argument.dtype} from {low} to {high}')"
    return [f"if not {low} <= {argument.name} <= {high}:", f"    {refuse}"]


def _call_cuda(name: str, tensors: list[Argument], passed: list[str]) -> list[str]:
    """The call on the current stream of the tensors' device; all tensors must be on one device."""
    required = [argument for argument in tensors if not argument.optional]
    lines = []
    if required:
        lines.append(f"_index = {required[0].name}.get_device()")
    else:
        chain = " else ".join(f"{a.name}.get_device() if {a.name} is not None" for a in tensors)
        lines.append(f"_index = {chain} else torch.cuda.current_device()")
    for argument in tensors:
        if required and argument is required[0]:
            continue
        present = f"{argument.name} is not None and " if argument.optional else ""
        lines += [
            f"if {present}{argument.name}.get_device() != _index:",
            f"    _refuse({name!r}, {argument.name!r}, {argument.name}, f'on cuda:{{_index}} like the others')",
        ]
    call = f"_c_{name}({', '.join([*passed, '_raw_stream(_index)'])})"
    lines += [
        "if _index == torch.cuda.current_device():",
        f"    _code = {call}",
        "else:",
        "    with torch.cuda.device(_index):",
        f"        _code = {call}",
    ]
    return lines


def _ctype(argument: Argument) -> str:
    return "ctypes.c_void_p" if argument.kind == "tensor" else f"ctypes.{SCALARS[argument.dtype][0]}"


def _schema(launcher: Launcher) -> str:
    """Operator schema: ``(Tensor x, Tensor(a!) y, int n) -> ()``."""
    parts: list[str] = []
    written = 0
    for argument in launcher.arguments:
        if argument.kind == "scalar":
            parts.append(f"{SCALARS[argument.dtype][1]} {argument.name}")
            continue
        alias = ""
        if argument.role != "input":
            alias = f"(a{written}!)"
            written += 1
        parts.append(f"Tensor{alias}{'?' if argument.optional else ''} {argument.name}")
    return f"({', '.join(parts)}) -> ()"


def _describe(launcher: Launcher) -> list[str]:
    described = []
    for a in launcher.arguments:
        what = f"{a.role} {a.layout} tensor" if a.kind == "tensor" else "scalar"
        described.append(f"    {a.name}: {a.dtype} {what}{', or None' if a.optional else ''}")
    return [f'    """Launch ``{launcher.name}`` of {launcher.source}.', "", *described, '    """']
