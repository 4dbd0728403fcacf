"""The C++ wrapper of a single-file export: torch tensors in, checked, the plain C launchers called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from stitchcuda.program.bindings import SCALARS
from stitchcuda.program.model import Argument, Launcher, Manifest

SCALAR_TYPES = {
    "float32": "at::kFloat",
    "float64": "at::kDouble",
    "float16": "at::kHalf",
    "bfloat16": "at::kBFloat16",
    "int8": "at::kChar",
    "uint8": "at::kByte",
    "int16": "at::kShort",
    "int32": "at::kInt",
    "int64": "at::kLong",
    "bool": "at::kBool",
}
CHECKED = "_checked"
"""Ending of the wrappers' names: one C++ name cannot be both the launcher and its wrapper."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(?P<name>[^"]+)"[^\n]*$', re.MULTILINE)

_HELPERS = """
namespace {
// Becomes whatever pointer type the launcher takes.
struct Address {
  void* value;
  template <class T> operator T*() const { return static_cast<T*>(value); }
};

Address checked(const at::Tensor& t, const char* name, at::ScalarType type, bool right_device, bool right_layout,
                uintptr_t alignment, bool read) {
  TORCH_CHECK(t.scalar_type() == type, name, " must be ", type, " but is ", t.scalar_type());
  TORCH_CHECK(right_device, name, " is on the wrong device: ", t.device());
  TORCH_CHECK(right_layout, name, " has the wrong layout: strides ", t.strides());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(t.data_ptr()) % alignment == 0, name, " must be aligned to ", alignment);
  TORCH_CHECK(!(read && at::GradMode::is_enabled() && t.requires_grad()), name,
              " requires grad, but this kernel has no gradient; call it under torch.no_grad()");
  return {t.data_ptr()};
}
}  // namespace
"""


def wrapper(manifest: Manifest, *, declare: bool) -> str:
    """C++ text with one function ``NAME_checked`` per launcher. ``declare`` adds declarations of the launchers, for
    a translation unit that does not define them."""
    cuda = manifest.target == "cuda"
    parts = ["#include <torch/extension.h>", "#include <cstdint>", "#include <optional>"]
    if cuda:
        parts += ["#include <c10/cuda/CUDAGuard.h>", "#include <c10/cuda/CUDAStream.h>"]
    parts.append(_HELPERS)
    for launcher in manifest.launchers:
        if declare:
            types = [_c_type(argument) for argument in launcher.arguments]
            parts.append(f'extern "C" int {launcher.name}({", ".join([*types, "void*"])});')
        parts.append(_function(launcher, cuda))
    return "\n".join(parts)


def inline_includes(path: str, files: Mapping[str, str], seen: set[str] | None = None) -> str:
    """Text of a source with each ``#include "..."`` of another file of the Program replaced by that file, once."""
    seen = set() if seen is None else seen
    seen.add(path)

    def insert(match: re.Match[str]) -> str:
        name = match["name"]
        for candidate in (str(PurePosixPath(path).parent / name), name):
            if candidate in files:
                return "" if candidate in seen else inline_includes(candidate, files, seen)
        return match[0]

    text = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", "", files[path], flags=re.MULTILINE)
    return _INCLUDE.sub(insert, text)


def _function(launcher: Launcher, cuda: bool) -> str:
    parameters = ", ".join(_parameter(argument) for argument in launcher.arguments)
    tensors = [argument for argument in launcher.arguments if argument.kind == "tensor"]
    required = [argument for argument in tensors if not argument.optional]
    body: list[str] = []
    if cuda:
        device = f"{required[0].name}.device()" if required else "at::Device(at::kCUDA, c10::cuda::current_device())"
        body += [f"const at::Device device_ = {device};"]
    passed = []
    for argument in launcher.arguments:
        passed.append(_address(argument, cuda) if argument.kind == "tensor" else argument.name)
    stream = "nullptr"
    if cuda:
        body += ['TORCH_CHECK(device_.is_cuda(), "the tensors must be on a CUDA device");']
        body += ["const c10::cuda::CUDAGuard guard_(device_);"]
        stream = "c10::cuda::getCurrentCUDAStream(device_.index()).stream()"
    body += [
        f"const int code_ = {launcher.name}({', '.join([*passed, stream])});",
        f'TORCH_CHECK(code_ == 0, "{launcher.name} failed with code ", code_);',
    ]
    return "\n".join([f"void {launcher.name}{CHECKED}({parameters}) {{", *(f"  {line}" for line in body), "}", ""])


def _parameter(argument: Argument) -> str:
    if argument.kind == "scalar":
        return f"{ {'float': 'double', 'int': 'int64_t', 'bool': 'bool'}[SCALARS[argument.dtype][1]] } {argument.name}"
    return f"std::optional<at::Tensor> {argument.name}" if argument.optional else f"at::Tensor {argument.name}"


def _address(argument: Argument, cuda: bool) -> str:
    name = f"(*{argument.name})" if argument.optional else argument.name
    device = f"{name}.device() == device_" if cuda else f"{name}.is_cpu()"
    layout = {
        "contiguous": f"{name}.is_contiguous()",
        "channels_last": f"({name}.dim() == 4 && {name}.is_contiguous(at::MemoryFormat::ChannelsLast)) || "
        f"({name}.dim() == 5 && {name}.is_contiguous(at::MemoryFormat::ChannelsLast3d))",
        "any": "true",
    }[argument.layout]
    read = "false" if argument.role == "output" else "true"
    call = (
        f'checked({name}, "{argument.name}", {SCALAR_TYPES[argument.dtype]}, {device}, {layout}, '
        f"{argument.alignment}, {read})"
    )
    return f"({argument.name} ? {call} : Address{{nullptr}})" if argument.optional else call


def _c_type(argument: Argument) -> str:
    return "void*" if argument.kind == "tensor" else SCALARS[argument.dtype][2]
