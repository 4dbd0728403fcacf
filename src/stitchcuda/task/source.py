"""Task source as text and as a module: what it binds, and how it is executed.

Standard library only, so that every process (the command line, the oracle, the runner) can use it.
It does not judge a Task; ``task.loader`` does.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
import types
from collections.abc import Iterator


def bound_names(tree: ast.Module) -> dict[str, ast.stmt]:
    """Names that running the module binds at its top level, with the statement that binds each last."""
    names: dict[str, ast.stmt] = {}
    for statement in _top_level(tree.body):
        for name in _binds(statement):
            names[name] = statement
    return names


def literal_string(tree: ast.Module, name: str) -> str | None:
    """The value of a top-level ``NAME = "literal"``; None where it is not bound.

    Raises ValueError when it is bound to something that is not a literal string.
    """
    statement = bound_names(tree).get(name)
    if statement is None:
        return None
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str)):
        return value.value
    raise ValueError(f"{name} (line {statement.lineno}) must be set to a literal string")


def execute(source: str, name: str, *, search_path: str | None = None) -> types.ModuleType:
    """Run ``source`` as a fresh module and return it; whatever the source raises goes through.

    The text is registered with ``linecache`` and the module with ``sys.modules``, so that tracebacks,
    ``inspect.getsource`` and torch.compile find them.
    """
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    filename = f"{name}.{key}.py"
    if search_path and search_path not in sys.path:
        sys.path.insert(0, search_path)
    module = types.ModuleType(f"stitchcuda_task_{key}")
    module.__file__ = filename
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.With | ast.Try | ast.For | ast.While):
            yield from _top_level(statement.body)
            yield from _top_level(getattr(statement, "orelse", []))
            yield from _top_level(getattr(statement, "finalbody", []))
            for handler in getattr(statement, "handlers", []):
                yield from _top_level(handler.body)


def _binds(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name
        case ast.Import() | ast.ImportFrom():
            for alias in statement.names:
                yield alias.asname or alias.name.split(".")[0]
        case ast.Assign():
            for target in statement.targets:
                names = (node for node in ast.walk(target) if isinstance(node, ast.Name))
                yield from (node.id for node in names if isinstance(node.ctx, ast.Store))
        case ast.AnnAssign() if statement.value is not None and isinstance(statement.target, ast.Name):
            yield statement.target.id
        case _:
            return
