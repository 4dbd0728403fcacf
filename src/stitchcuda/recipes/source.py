"""What is kept of a task's source in a Program: the classes with their constructors, not the test configuration."""

from __future__ import annotations

import ast

from stitchcuda import syntax
from stitchcuda.task.derive import for_programs

DROPPED = ("get_inputs", "get_init_inputs", "get_input_cases")


def kept_source(source: str, *, keep_forward: bool = False) -> str:
    """``source`` without ``Model.forward`` (unless asked to keep it) and without the functions that only draw inputs.

    A function that other code refers to stays. Text is cut by lines, so comments and layout survive. What reads real
    inputs and weights goes too: a program is given both, and is taken to where those files are not.
    """
    source = for_programs(source)
    tree = syntax.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    lines = source.splitlines()
    cuts: list[tuple[int, int, str]] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in DROPPED and statement.name not in used:
            cuts.append((_first(statement), _last(statement), ""))
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            for member in statement.body:
                if isinstance(member, ast.FunctionDef) and member.name == "forward" and not keep_forward:
                    filler = " " * member.col_offset + "pass" if len(statement.body) == 1 else ""
                    cuts.append((_first(member), _last(member), filler))
    for first, last, filler in sorted(cuts, reverse=True):
        lines[first - 1 : last] = [filler] if filler else []
    return "\n".join(lines).strip() + "\n"


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _last(node: ast.FunctionDef) -> int:
    return node.end_lineno or node.lineno
