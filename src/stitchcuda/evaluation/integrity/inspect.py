"""The static layer over a whole Program: its Python files, its native sources and the native texts inside its Python.

Static findings come last and never alone: they read what is written, not what ran.
"""

from __future__ import annotations

import ast

from stitchcuda.evaluation.integrity.native_tokens import Macro
from stitchcuda.evaluation.integrity.python_tables import KERNEL_LANGUAGES
from stitchcuda.evaluation.integrity.rules import Hit, findings
from stitchcuda.evaluation.integrity.static_native import native_hits, native_macros
from stitchcuda.evaluation.integrity.static_python import native_texts, python_hits
from stitchcuda.evaluation.integrity.trees import parse, walk
from stitchcuda.evaluation.model import Finding
from stitchcuda.program.flags import is_native
from stitchcuda.program.imports import local_modules
from stitchcuda.program.model import ENTRY, Program
from stitchcuda.task.model import Precision, Target


def inspect_program(program: Program, target: Target, precision: Precision) -> list[Finding]:
    """Findings of the static layer, rejections first; ``target`` tells which sources are compiled, and ``precision``
    whether approximate arithmetic is worth a word. Reads text only; costs milliseconds."""
    native = {path: text for path, text in program.files.items() if is_native(path)}
    python = {path: text for path, text in program.files.items() if path.endswith(".py")}
    inside = {path: native_texts(text) for path, text in python.items()}
    macros = native_macros(native.values())
    local = frozenset(local_modules(program))
    launchers = program.manifest.launchers if program.manifest is not None else []
    outputs = {
        launcher.name: tuple(at for at, each in enumerate(launcher.arguments) if each.role != "input")
        for launcher in launchers
    }
    hits: list[Hit] = []
    for path, text in python.items():
        hits += python_hits(path, text, precision=precision, local=local, outputs=outputs)
        shared: dict[str, Macro] = macros | native_macros(text for _, text in inside[path])
        for line, source in inside[path]:
            hits += native_hits(path, source, precision=precision, macros=shared, first_line=line)
    for path, text in native.items():
        hits += native_hits(path, text, precision=precision, macros=macros)
    if not native and not any(inside.values()) and not any(_brings_kernels(text) for text in python.values()):
        hits.append(
            Hit("no_own_kernel", ENTRY, 0, f"neither native sources nor a kernel language, target {target.kind}")
        )
    return findings(hits, "static")


def _brings_kernels(source: str) -> bool:
    """Whether a Python file imports something that kernels are written in."""
    tree = parse(source)
    if tree is None:
        return True
    for node in walk(tree):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] in KERNEL_LANGUAGES for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in KERNEL_LANGUAGES:
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("load_inline", "_compile_kernel"):
            return True
    return False
