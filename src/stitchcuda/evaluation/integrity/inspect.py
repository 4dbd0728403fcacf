"""The static layer over a whole Program: its Python files, its native sources and the native texts inside its Python.

Static findings come last and never alone: they read what is written, not what ran.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from stitchcuda.evaluation.integrity.fold import Folder
from stitchcuda.evaluation.integrity.names import Names
from stitchcuda.evaluation.integrity.native_tokens import Macro
from stitchcuda.evaluation.integrity.python_launches import launcher_use
from stitchcuda.evaluation.integrity.python_tables import KERNEL_LANGUAGES
from stitchcuda.evaluation.integrity.python_view import View
from stitchcuda.evaluation.integrity.rules import Hit, findings
from stitchcuda.evaluation.integrity.static_native import native_hits, native_macros
from stitchcuda.evaluation.integrity.static_python import native_texts, python_hits
from stitchcuda.evaluation.integrity.trees import parse, walk
from stitchcuda.evaluation.model import Finding
from stitchcuda.program.flags import is_native
from stitchcuda.program.imports import local_modules
from stitchcuda.program.model import ENTRY, Program
from stitchcuda.task.model import Precision, Target

_JOINING = re.compile(
    r"[.>](wait_stream|wait_event|synchronize|block)\s*\(|\bcu(da)?(Stream|Event|Ctx|Device)(WaitEvent|Synchronize)\b"
)
"""Where a text has streams wait for each other."""


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
        hits = [replace(hit, rule="stock_compiler") if hit.rule == "compiler_wrap" else hit for hit in hits]
        what = f"neither native sources nor a kernel language, target {target.kind}"
        hits.append(Hit("no_own_kernel", ENTRY, 0, what))
    # One file may make the stream and another join it.
    joining = {path for path, text in program.files.items() if _JOINING.search(text)}
    hits = [
        replace(hit, rule="side_stream") if hit.rule == "unjoined_stream" and joining - {hit.path} else hit
        for hit in hits
    ]
    if outputs and (idle := _decoys(python, outputs)):
        hits.append(Hit("decoy_kernel", ENTRY, 0, idle))
    return findings(hits, "static")


def _decoys(python: dict[str, str], outputs: dict[str, tuple[int, ...]]) -> str:
    """Why none of the launchers can matter: nothing mentions them outside constructors, or every call's outputs are
    thrown away. Empty when one may matter."""
    calls = discarded = mentioned = 0
    for text in python.values():
        tree = parse(text)
        if tree is None:
            return ""
        folder = Folder(tree)
        use = launcher_use(View(ENTRY, tree, folder, Names(tree, folder)), outputs)
        mentioned, calls, discarded = mentioned + use.mentioned, calls + use.calls, discarded + use.discarded
    if not mentioned:
        return f"nothing calls {', '.join(sorted(outputs)[:4])}"
    return "the outputs of every launch are thrown away" if calls and calls == discarded == mentioned else ""


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
