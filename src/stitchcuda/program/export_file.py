"""A Program as one Python file in KernelBench's form: ModelNew, its native sources compiled by ``load_inline``."""

from __future__ import annotations

import ast
import json

from stitchcuda import syntax
from stitchcuda.errors import ProgramError
from stitchcuda.program import imports
from stitchcuda.program.export_cpp import CHECKED, inline_includes, wrapper
from stitchcuda.program.flags import native_sources
from stitchcuda.program.model import ENTRY, Manifest, Program
from stitchcuda.program.validate import validate

_MODULE = '''
def _module(name, **values):
    """A module of this file's own."""
    module = types.ModuleType(name)
    vars(module).update(values)
    return module
'''

_CUDA_FLAGS = '''
def _cuda_flags():
    """Compile for the GPU that is there, with its architecture-specific instructions."""
    major, minor = torch.cuda.get_device_capability()
    number = f"{major}{minor}" + ("a" if major >= 9 else "")
    hidden = ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    shown = [f"-U__CUDA_NO_{name}__" for name in hidden]  # torch hides the half types' operators
    return ["-O3", "-lineinfo", *shown, f"-gencode=arch=compute_{number},code=sm_{number}"]


# The sources bring their own headers; torch's would make each compile slow.
_own_headers = {"no_implicit_headers": True} if "no_implicit_headers" in signature(load_inline).parameters else {}
'''

_CPU_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")

_LOAD_SEVERAL = '''
def _load_several(name, sources, **options):
    """Compile sources that cannot share one translation unit."""
    import os
    import tempfile

    from torch.utils.cpp_extension import load

    folder = os.path.join(tempfile.gettempdir(), f"{name}_{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    paths = []
    for path, text in sources.items():
        paths.append(os.path.join(folder, path.replace("/", "_")))
        with open(paths[-1], "w", encoding="utf-8") as file:
            file.write(text)
    return load(name=name, sources=paths, **options)
'''


def to_kernelbench(program: Program) -> str:
    """One Python file that defines ModelNew, as KernelBench takes it; needs torch and a compiler.

    Native sources become ``load_inline`` with a C++ wrapper that checks its arguments and passes the current
    stream. A Program that is one Python file already is returned as it is. Raises ProgramError for a Program
    whose Python files lie in folders or import each other in a circle.
    """
    validate(program)
    helpers = {path: text for path, text in program.files.items() if path.endswith(".py") and path != ENTRY}
    if program.manifest is None and not helpers:
        return program.files[ENTRY]
    prefix = f"stitchcuda_{program.digest[:10]}"
    names = imports.local_modules(program)
    head = ["import sys", "import types", ""]
    if program.manifest is not None:
        head[1:1] = ["from inspect import signature"]
        head += ["import torch", "from torch.utils.cpp_extension import load_inline", ""]
    head.append(_MODULE)
    if program.manifest is not None:
        head += _extension(program, program.manifest, prefix)
    for name in _in_import_order(helpers):
        text = _renamed(helpers[f"{name}.py"], names, prefix)
        known = repr(f"{prefix}_{name}")
        head += [f"_source_{name} = {_literal(text)}", f"_{name} = sys.modules[{known}] = _module({known})"]
        head += [f'exec(compile(_source_{name}, "{name}.py", "exec"), vars(_{name}))', ""]
    future, entry = _split_future(_renamed(program.files[ENTRY], names, prefix))
    return "\n".join([*future, *head, "", entry.strip("\n"), ""])


def _extension(program: Program, manifest: Manifest, prefix: str) -> list[str]:
    """Lines that compile the native sources and make the bindings importable as ``PREFIX_bindings``."""
    cuda = manifest.target == "cuda"
    paths = native_sources(program.files, manifest.target)
    sources = {path: inline_includes(path, program.files) for path in paths}
    together = len(paths) == 1
    checked = wrapper(manifest, declare=cuda or not together)
    functions = [launcher.name + CHECKED for launcher in manifest.launchers]
    libraries = [f"-l{name}" for name in manifest.libraries]
    if cuda:
        options = f"extra_cuda_cflags=_cuda_flags(), extra_ldflags={libraries!r}"
    else:
        options = f"extra_cflags={list(_CPU_FLAGS)!r}, extra_ldflags=['-fopenmp']"
    lines = [_CUDA_FLAGS] if cuda else []
    if together:
        (source,) = sources.values()
        lines.append(f"_SOURCE = {_literal(source)}")
        lines.append(f"_WRAPPER = {_literal(checked)}")
        native = (
            "cpp_sources=[_WRAPPER], cuda_sources=[_SOURCE], **_own_headers"
            if cuda
            else "cpp_sources=[_SOURCE, _WRAPPER]"
        )
        lines.append(f"_kernels = load_inline(name={prefix!r}, {native}, functions={functions!r}, {options})")
    else:
        definitions = "\n".join(f'  m.def("{name}", &{name});' for name in functions)
        checked += f"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{definitions}\n}}\n"
        lines += [_LOAD_SEVERAL, "_SOURCES = {"]
        lines += [f"    {path!r}: {_literal(text)}," for path, text in {**sources, "wrapper.cpp": checked}.items()]
        lines += ["}", f"_kernels = _load_several({prefix!r}, _SOURCES, {options})"]
    bound = ", ".join(f"{launcher.name}=_kernels.{launcher.name}{CHECKED}" for launcher in manifest.launchers)
    known = repr(f"{prefix}_bindings")  # as a literal, which shows that no other library's module is replaced
    lines += [f"sys.modules[{known}] = _module({known}, {bound})", ""]
    return lines


def _renamed(source: str, names: set[str], prefix: str) -> str:
    """``source`` with imports of the Program's own modules going to their unique names."""

    def replace(node: ast.Import | ast.ImportFrom) -> str:
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        if "." in (module or ""):
            raise ProgramError(f"the import of {module} leads into a folder; only flat programs can be one file")
        if isinstance(node, ast.ImportFrom):
            return f"from {prefix}_{node.module} import {imports.aliases(node.names)}"
        parts = []
        for alias in node.names:
            own = alias.name in names
            known = f" as {alias.asname or alias.name}" if own or alias.asname else ""
            parts.append(f"{prefix + '_' if own else ''}{alias.name}{known}")
        return f"import {', '.join(parts)}"

    return imports.rewrite(source, names, replace)


def _in_import_order(helpers: dict[str, str]) -> list[str]:
    """Names of the helper modules, each after those it imports."""
    wanted: dict[str, set[str]] = {}
    for path, text in helpers.items():
        if "/" in path:
            raise ProgramError(f"{path} lies in a folder; only flat programs can be exported as one file")
        found: set[str] = set()
        for node in ast.walk(syntax.parse(text)):
            if isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        wanted[path.removesuffix(".py")] = found
    order: list[str] = []
    while len(order) < len(wanted):
        ready = sorted(
            n for n, need in wanted.items() if n not in order and not (need & wanted.keys()) - set(order) - {n}
        )
        if not ready:
            raise ProgramError("the program's Python files import each other in a circle, so they cannot be one file")
        order += ready
    return order


def _split_future(source: str) -> tuple[list[str], str]:
    """The ``from __future__`` lines, which must come first in the file, and the rest."""
    lines = source.splitlines()
    future = [line for line in lines if line.startswith("from __future__ import ")]
    return future, "\n".join(line for line in lines if line not in future)


def _literal(text: str) -> str:
    """A Python literal for source text: readable, whatever it holds."""
    if "'''" in text or text.endswith(("\\", "'")) or "\r" in text:
        return json.dumps(text, ensure_ascii=False)
    return f"r'''{text}'''"
