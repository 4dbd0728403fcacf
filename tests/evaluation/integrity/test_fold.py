"""Folding: what a string will be is known without running anything, whatever it is put together from."""

from __future__ import annotations

import ast

import pytest

from stitchcuda.evaluation.integrity.fold import UNKNOWN, Folded, Folder


def fold(expression: str, before: str = "") -> Folded | None:
    tree = ast.parse(f"{before}\nresult = {expression}")
    statement = tree.body[-1]
    assert isinstance(statement, ast.Assign)
    return Folder(tree).fold(statement.value)


def value(expression: str, before: str = "") -> object:
    folded = fold(expression, before)
    return folded.value if folded is not None else None


@pytest.mark.parametrize(
    "expression",
    [
        "'os.' + 'fork'",
        "'os' '.fork'",
        "'.'.join(['os', 'fork'])",
        "'%s.%s' % ('os', 'fork')",
        "'{}.{}'.format('os', 'fork')",
        "f'{\"os\"}.fork'",
        "'krof.so'[::-1]",
        "'OS.FORK'.lower()",
        "'os#fork'.replace('#', '.')",
        "bytes([111, 115, 46, 102, 111, 114, 107]).decode()",
        "''.join(chr(c) for c in [111, 115, 46, 102, 111, 114, 107])",
        "''.join(map(chr, (111, 115, 46, 102, 111, 114, 107)))",
        "''.join(chr(c - 1) for c in (112, 116, 47, 103, 112, 115, 108))",
        "base64.b64decode('b3MuZm9yaw==').decode()",
        "bytes.fromhex('6f732e666f726b').decode('utf-8')",
        "codecs.decode('bf.sbex', 'rot13')",
        "str(b'os.fork', 'ascii')",
        "''.join(reversed('krof.so'))",
        "zlib.decompress(bytes.fromhex('789ccb2fd64bcb2fca06000adc02c3')).decode()",
    ],
)
def test_a_string_in_pieces_is_put_together(expression: str) -> None:
    assert value(expression) == "os.fork"


def test_only_encoded_text_counts_as_decoded() -> None:
    plain, encoded = fold("'a' + 'b'.upper()"), fold("base64.b64decode('YQ==')")
    assert plain is not None
    assert encoded is not None
    assert (plain.decoded, encoded.decoded) == (False, True)


def test_names_bound_once_are_followed_and_others_are_not() -> None:
    assert value("a + b", "a = 'x'\nb = a * 2") == "xxx"
    assert value("a", "a = 'x'\na = 'y'") is None


def test_what_is_not_known_leaves_its_place() -> None:
    assert value("f'/proc/{pid()}/mem'") == f"/proc/{UNKNOWN}/mem"
    assert value("'/proc/%d/mem' % pid()") == f"/proc/{UNKNOWN}/mem"
    assert value("'/proc/' + pid()") == f"/proc/{UNKNOWN}"


@pytest.mark.parametrize(
    "expression",
    ["'x' * 10**9", "[0] * 10**9", "1 << 10**6", "2 ** 10**6", "'%1000000000d' % 1", "f'{1:1000000000}' * 1000000000"],
)
def test_nothing_large_is_computed(expression: str) -> None:
    assert value(expression) is None


def test_names_in_a_circle_end() -> None:
    assert value("a", "a = b\nb = a") is None
