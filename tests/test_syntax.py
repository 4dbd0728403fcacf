"""Syntax trees are built in many threads at a time: turns of a round, rewards of a batch."""

from __future__ import annotations

import ast
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stitchcuda import syntax

SOURCE = "def f(x):\n    return [(x + (y * (y - 1))) for y in range(x) if y > 2]\n" * 40


@pytest.fixture
def pauses() -> Iterator[None]:
    """Another thread's turn within the building of every tree, as any finalizer may bring about."""

    def pause(phase: str, info: dict[str, Any]) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(pause)
    yield
    gc.callbacks.remove(pause)
    gc.set_threshold(*before)


@pytest.mark.usefixtures("pauses")
def test_threads_do_not_disturb_each_other() -> None:
    trees, problems = [], []

    def work() -> None:
        try:
            for _ in range(10):
                trees.append(len(syntax.parse(SOURCE).body) + bool(syntax.parse_expression("a + b").body))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (trees, problems) == ([41] * 40, [])


NESTED: dict[str, Callable[[int], str]] = {
    "sum": lambda depth: "x = " + " + ".join(["y"] * depth),
    "elif": lambda depth: "if a:\n    pass\n" + "elif a:\n    pass\n" * depth,
    "not": lambda depth: "x = " + "not " * depth + "y",
    "power": lambda depth: "x = " + " ** ".join(["y"] * depth),
    "calls": lambda depth: "x = f" + "()" * depth,
    "dictionaries": lambda depth: "x = " + "{1: " * depth + "2" + "}" * depth,
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("depth", [syntax.DEEPEST + 1, 8000])
def test_what_is_nested_too_deeply_is_a_syntax_error(kind: str, depth: int) -> None:
    with pytest.raises(SyntaxError, match="nested"):
        syntax.parse(NESTED[kind](depth))


@pytest.mark.parametrize("kind", NESTED)
def test_what_is_nested_less_can_be_walked_by_recursion(kind: str) -> None:
    tree = syntax.parse(NESTED[kind](syntax.DEEPEST - 10))
    assert ast.unparse(ast.NodeTransformer().visit(tree))


def test_an_expression_is_bounded_too() -> None:
    with pytest.raises(SyntaxError, match="nested"):
        syntax.parse_expression(" + ".join(["y"] * 8000))
