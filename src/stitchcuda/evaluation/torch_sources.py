"""The translation units of a ``load_inline`` call: what torch writes around the sources, and for our own headers the
standard headers that PyTorch's would have brought with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stitchcuda.evaluation import torch_inline


class Refused(Exception):
    """These headers are not tried, for this reason."""


class Broken(Exception):
    """The call builds with no headers at all, for this reason."""


@dataclass(frozen=True)
class Unit:
    """One source file."""

    name: str
    text: str
    cuda: bool


_STANDARD: dict[str, tuple[str, ...]] = {
    "iostream": ("cout", "cerr", "clog", "endl", "ostream", "istream"),
    "sstream": ("stringstream", "ostringstream", "istringstream"),
    "iomanip": ("setprecision", "setw", "fixed"),
    "map": ("map", "multimap"),
    "unordered_map": ("unordered_map",),
    "set": ("set",),
    "unordered_set": ("unordered_set",),
    "deque": ("deque",),
    "queue": ("queue", "priority_queue"),
    "list": ("list",),
    "array": ("array",),
    "functional": ("function", "plus", "multiplies", "greater", "less", "bind", "hash"),
    "memory": ("unique_ptr", "shared_ptr", "make_unique", "make_shared"),
    "mutex": ("mutex", "lock_guard", "unique_lock", "once_flag", "call_once"),
    "thread": ("thread", "this_thread"),
    "future": ("async", "future"),
    "chrono": ("chrono",),
    "numeric": ("accumulate", "iota", "inner_product"),
    "random": ("mt19937", "random_device", "uniform_real_distribution", "normal_distribution"),
    "complex": ("complex",),
    "algorithm": (
        "min_element", "max_element", "minmax_element", "sort", "stable_sort", "fill", "fill_n", "copy", "copy_n",
        "transform", "reverse", "find", "find_if", "all_of", "any_of", "clamp", "nth_element", "partial_sort",
        "unique", "count", "lower_bound", "upper_bound", "generate", "for_each", "min", "max", "swap_ranges",
    ),
    "string_view": ("string_view",),
    "bitset": ("bitset",),
    "variant": ("variant", "visit"),
    "any": ("any",),
}  # fmt: skip
_HEADER_OF = {name: header for header, names in _STANDARD.items() for name in names}
_HALF = re.compile(r"[Hh]alf|bfloat|BFloat|__nv_bf|REDUCED_FLOATING")
_PARALLEL = re.compile(
    r"#\s*pragma\s+omp|_Pragma\s*\(\s*\"omp|\bstd\s*::\s*(thread|async)\b|\bpthread_create\b|\bparallel_for\b"
)
_IN_PARALLEL = re.compile(r"\b(torch|at)\s*::\s*(?!Half|BFloat16|kFloat|ScalarType)\w+\s*\(")


def units(wanted: Mapping[str, Any], name: str, *, own: bool) -> tuple[Unit, ...]:
    """The files that load_inline would write for a request (see ``torch_inline.request``) called ``name``; ``own``: for
    our headers. Raises Refused and Broken."""
    cpp, cuda = "\n".join(wanted["cpp"]), "\n".join(wanted["cuda"])
    functions = wanted["functions"]
    module = re.search(r"\bPYBIND11_MODULE\s*\(\s*(\w+)", f"{cpp}\n{cuda}")
    if functions is None and module is None:
        raise Refused("nothing defines its Python module")
    if module is not None and module[1] not in ("TORCH_EXTENSION_NAME", name):
        raise Refused(f"its module is called {module[1]}, not {name}")
    for function in functions or ():
        if not re.search(rf"\b{re.escape(function.rpartition('::')[2])}\b", cpp):
            raise Broken(f"functions names {function}, which cpp_sources does not declare; declare it there")
    if functions is not None and re.search(r"(?m)^\s*PYBIND11_MODULE", cpp) and not re.search(r"/\*|#\s*if|R\"", cpp):
        raise Broken("functions is given, and cpp_sources has a PYBIND11_MODULE too; leave one of them out")
    if own:
        _refuse(f"{cpp}\n{cuda}")
    implicit = not wanted["no_implicit_headers"]
    cpp_head = ["#include <torch/extension.h>"] if implicit or functions is not None else []
    cuda_head = ["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>"] if implicit else []
    if own:
        cpp_head, cuda_head = [*_standard(cpp), *cpp_head], [*_standard(cuda), *cuda_head]
        if re.search(r"\bcublas", cpp):
            cpp_head.insert(0, "#include <cublas_v2.h>")
        if re.search(r"\bcublas", cuda):
            cuda_head.insert(0, "#include <cublas_v2.h>")
    tail = ""
    if functions is not None:
        entries = [f"m.def({_quoted(key)}, {_bound(key, own)}, {_quoted(doc)});" for key, doc in functions.items()]
        tail = "\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n" + "\n".join(entries) + "\n}\n"
    if not own and module is not None and module[1] != "TORCH_EXTENSION_NAME":
        cpp, cuda = (_renamed(text, module[1]) for text in (cpp, cuda))
    made = [Unit("main.cpp", "\n".join([*cpp_head, cpp]) + tail + "\n", cuda=False)]
    if wanted["cuda"]:
        half = ["#define STITCH_WITH_HALF 1"] if own and _HALF.search(cuda) else []
        made.append(Unit("cuda.cu", "\n".join([*half, *cuda_head, cuda]) + "\n", cuda=True))
    return tuple(made)


def _refuse(text: str) -> None:
    """What would compile, and not do the same."""
    for match in _PARALLEL.finditer(text):
        block = _block(text, match.end())
        names = _tensor_names(text[max(0, text.rfind("\n}", 0, match.start())) : match.start()])
        if _IN_PARALLEL.search(block) or any(re.search(rf"(?<![\w.]){re.escape(name)}\s*\[", block) for name in names):
            raise Refused("it uses tensors in threads of its own")
    if re.search(r"\bTORCH_LIBRARY|\bSTABLE_TORCH_LIBRARY", text):
        raise Refused("it registers operators")


def _tensor_names(text: str) -> set[str]:
    found = set(re.findall(r"\b(?:torch|at)::Tensor\s*&?\s*(\w+)", text))
    return found | set(re.findall(r"\bauto\s+(\w+)\s*=\s*(?:torch|at)::", text))


def _block(text: str, start: int) -> str:
    """The statement after a pragma, to the end of its braces."""
    opening = text.find("{", start)
    if opening < 0:
        return text[start:]
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start : at + 1]
    return text[start:]


def _standard(text: str) -> list[str]:
    names = set(re.findall(r"\bstd\s*::\s*(\w+)", text)) | (
        {"cout", "endl"} if "using namespace std" in text else set()
    )
    if "using namespace std" in text:
        names |= {name for name in _HEADER_OF if re.search(rf"\b{name}\b", text)}
    return [
        f"#include <{header}>" for header in dict.fromkeys(_HEADER_OF[n] for n in sorted(names & _HEADER_OF.keys()))
    ]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _bound(name: str, own: bool) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w:]*", name):
        raise Refused(f"{name[:40]!r} is no name of a function")
    return name if own else f"torch::wrap_pybind_function({name})"


def _renamed(text: str, module: str) -> str:
    return re.sub(rf"(\bPYBIND11_MODULE\s*\(\s*){re.escape(module)}\b", rf"\g<1>{torch_inline.ENTRY}", text)
