"""Rewriting the imports of a Program's Python files, for exports in which modules lie elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable

from stitchcuda import syntax
from stitchcuda.program.model import Program


def local_modules(program: Program) -> set[str]:
    """Names that resolve to files of the Program, ``bindings`` included when it has launchers."""
    names = {path.split("/")[0].removesuffix(".py") for path in program.files if path.endswith(".py")}
    if program.manifest is not None:
        names.add("bindings")
    return names


def rewrite(source: str, names: set[str], replace: Callable[[ast.Import | ast.ImportFrom], str | None]) -> str:
    """``source`` with each import of a module in ``names`` replaced by what ``replace`` gives (None: left).

    The replacement must be a single logical line; it keeps the statement's indentation.
    """
    lines = source.splitlines(keepends=True)
    hits: list[tuple[ast.Import | ast.ImportFrom, str]] = []
    for node in ast.walk(syntax.parse(source)):
        if isinstance(node, ast.ImportFrom):
            local = not node.level and (node.module or "").split(".")[0] in names
        elif isinstance(node, ast.Import):
            local = any(alias.name.split(".")[0] in names for alias in node.names)
        else:
            continue
        if local and (text := replace(node)) is not None:
            hits.append((node, text))
    for node, text in sorted(hits, key=lambda hit: -hit[0].lineno):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head = lines[first].encode()[: node.col_offset].decode()
        tail = lines[last].encode()[node.end_col_offset :].decode()
        lines[first : last + 1] = [f"{head}{text}{tail}"]
    return "".join(lines)


def relative(node: ast.Import | ast.ImportFrom, names: set[str], up: str = ".") -> str:
    """The import as one inside a package: ``from bindings import f`` as ``from .bindings import f``.

    ``up`` is the dots that lead from the file to the package's top folder.
    """
    if isinstance(node, ast.ImportFrom):
        return f"from {up}{node.module} import {aliases(node.names)}"
    parts = []
    for alias in node.names:
        known = f" as {alias.asname}" if alias.asname else ""
        if alias.name.split(".")[0] not in names:
            parts.append(f"import {alias.name}{known}")
            continue
        parent, _, leaf = alias.name.rpartition(".")
        parts.append(f"from {up}{parent} import {leaf}{known}")
    return "; ".join(parts)


def aliases(names: list[ast.alias]) -> str:
    """``a, b as c`` for the names of an import."""
    return ", ".join(f"{alias.name}{f' as {alias.asname}' if alias.asname else ''}" for alias in names)
