"""Values of Python expressions that can be known without running them: strings put together from pieces, decoded, or
spelled by character codes.

Nothing here executes the Program: only the listed operations on constants are carried out, on bounded sizes. What is
not known inside a string becomes UNKNOWN, so that ``f"/proc/{pid}/mem"`` still shows its shape.
"""

from __future__ import annotations

import ast
import base64
import binascii
import bz2
import codecs
import contextlib
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stitchcuda.evaluation.integrity.trees import walk

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
MAX_SIZE = 1 << 20
"""Characters, bytes or items of a folded value."""
MAX_DEPTH = 60


@dataclass(frozen=True)
class Folded:
    """``value`` (str, bytes, int, float, bool or a tuple of these); ``decoded`` when decoding or character codes were
    needed to get it, which honest code does not need for text; ``partial`` when parts are UNKNOWN."""

    value: Any
    decoded: bool = False
    partial: bool = False


def _decompress(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, MAX_SIZE)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "b64decode": base64.b64decode,
    "urlsafe_b64decode": base64.urlsafe_b64decode,
    "standard_b64decode": base64.b64decode,
    "decodebytes": base64.decodebytes,
    "b32decode": base64.b32decode,
    "b16decode": base64.b16decode,
    "b85decode": base64.b85decode,
    "a85decode": base64.a85decode,
    "unhexlify": binascii.unhexlify,
    "a2b_hex": binascii.unhexlify,
    "a2b_base64": binascii.a2b_base64,
    "fromhex": bytes.fromhex,
}
_DECOMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zlib": _decompress,
    "gzip": lambda data: zlib.decompressobj(31).decompress(data, MAX_SIZE),
    "bz2": lambda data: bz2.BZ2Decompressor().decompress(data, MAX_SIZE),
    "lzma": lambda data: lzma.LZMADecompressor().decompress(data, MAX_SIZE),
}
_TEXT_METHODS = frozenset({"lower", "upper", "strip", "lstrip", "rstrip", "replace", "title", "swapcase", "capitalize"})
_ODD_CODECS = frozenset({"rot13", "rot_13", "hex", "hex_codec", "base64", "base64_codec", "zlib", "zlib_codec", "bz2"})


class Folder:
    """Folds expressions of one module; a name counts as known when the module binds it exactly once, to a value that
    folds."""

    def __init__(self, tree: ast.Module) -> None:
        self._memo: dict[int, Folded | None] = {}
        self._names = _single_assignments(tree)
        self._busy: set[str] = set()

    def fold(self, node: ast.AST) -> Folded | None:
        """The value of an expression, or None when it is not known."""
        return self._fold(node, {}, 0)

    def text(self, node: ast.AST) -> str | None:
        """The value of an expression when it is a str."""
        folded = self.fold(node)
        return folded.value if folded is not None and isinstance(folded.value, str) else None

    def _fold(self, node: ast.AST, local: dict[str, Any], depth: int) -> Folded | None:
        if depth > MAX_DEPTH:
            return None
        key = id(node)
        if not local and key in self._memo:
            return self._memo[key]
        folded: Folded | None = None
        with contextlib.suppress(
            ArithmeticError, ValueError, TypeError, LookupError, zlib.error, lzma.LZMAError, OSError
        ):
            folded = self._compute(node, local, depth + 1)
        if folded is not None and not _small(folded.value):
            folded = None
        if not local:
            self._memo[key] = folded
        return folded

    def _compute(self, node: ast.AST, local: dict[str, Any], depth: int) -> Folded | None:
        if isinstance(node, ast.Constant):
            return Folded(node.value) if isinstance(node.value, (str, bytes, int, float)) else None
        if isinstance(node, ast.Name):
            return self._name(node.id, local, depth)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            items = [self._fold(item, local, depth) for item in node.elts]
            known = [item for item in items if item is not None]
            if len(known) != len(items):
                return None
            return Folded(tuple(item.value for item in known), any(item.decoded for item in known))
        if isinstance(node, ast.BinOp):
            return self._binary(node, local, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._fold(node.operand, local, depth)
            return Folded(-inner.value, inner.decoded) if inner is not None else None
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, local, depth)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, local, depth)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._comprehension(node, local, depth)
        if isinstance(node, ast.Call):
            return self._call(node, local, depth)
        return None

    def _name(self, name: str, local: dict[str, Any], depth: int) -> Folded | None:
        if name in local:
            return Folded(local[name])
        value = self._names.get(name)
        if value is None or name in self._busy:
            return None
        self._busy.add(name)
        try:
            return self._fold(value, {}, depth)
        finally:
            self._busy.discard(name)

    def _binary(self, node: ast.BinOp, local: dict[str, Any], depth: int) -> Folded | None:
        left, right = self._fold(node.left, local, depth), self._fold(node.right, local, depth)
        if isinstance(node.op, ast.Add) and (left is None) != (right is None):
            known = left or right
            if known is None or not isinstance(known.value, str):
                return None
            text = known.value + UNKNOWN if left is not None else UNKNOWN + known.value
            return Folded(text, known.decoded, True)
        if left is None or right is None:
            if isinstance(node.op, ast.Mod) and left is not None and isinstance(left.value, str):
                return Folded(left.value.replace("%s", UNKNOWN).replace("%d", UNKNOWN), left.decoded, True)
            return None
        a, b = left.value, right.value
        decoded, partial = left.decoded or right.decoded, left.partial or right.partial
        if isinstance(node.op, ast.Add):
            return Folded(a + b, decoded, partial)
        if isinstance(node.op, ast.Mod) and isinstance(a, str):
            return Folded(a % b, decoded, partial) if "*" not in a and not _wide(a) else None
        if isinstance(node.op, ast.Mult):
            count = b if isinstance(b, int) else a
            size = _size(a) * max(_size(b), 1) if not isinstance(count, int) else max(_size(a), _size(b)) * abs(count)
            return Folded(a * b, decoded, partial) if size <= MAX_SIZE else None
        if isinstance(a, int) and isinstance(b, int):
            operations: dict[type[ast.operator], Callable[[int, int], int]] = {
                ast.Sub: int.__sub__,
                ast.BitXor: int.__xor__,
                ast.BitAnd: int.__and__,
                ast.BitOr: int.__or__,
                ast.Mod: int.__mod__,
                ast.FloorDiv: int.__floordiv__,
                ast.RShift: int.__rshift__,
            }
            if (operation := operations.get(type(node.op))) is not None:
                return Folded(operation(a, b), decoded)
            if isinstance(node.op, ast.LShift) and 0 <= b <= 64:
                return Folded(a << b, decoded)
        return None

    def _joined(self, node: ast.JoinedStr, local: dict[str, Any], depth: int) -> Folded:
        text, decoded, partial = "", False, False
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            folded = self._fold(inner, local, depth)
            known = folded is not None and not (isinstance(part, ast.FormattedValue) and part.format_spec)
            text += str(folded.value) if folded is not None and known else UNKNOWN
            decoded = decoded or (folded is not None and folded.decoded)
            partial = partial or not known or (folded is not None and folded.partial)
        return Folded(text, decoded, partial)

    def _subscript(self, node: ast.Subscript, local: dict[str, Any], depth: int) -> Folded | None:
        value = self._fold(node.value, local, depth)
        if value is None or not isinstance(value.value, (str, bytes, tuple)):
            return None
        if isinstance(node.slice, ast.Slice):
            bounds = [self._fold(part, local, depth) if part else None for part in _slice_parts(node.slice)]
            if any(
                part is not None and bound is None for part, bound in zip(_slice_parts(node.slice), bounds, strict=True)
            ):
                return None
            picked = slice(*(bound.value if bound is not None else None for bound in bounds))
            turned = isinstance(value.value, str) and bool(picked.step) and picked.step != 1
            return Folded(value.value[picked], value.decoded or turned, value.partial)
        index = self._fold(node.slice, local, depth)
        return Folded(value.value[index.value], value.decoded) if index is not None else None

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, local: dict[str, Any], depth: int) -> Folded | None:
        if len(node.generators) != 1 or node.generators[0].ifs or not isinstance(node.generators[0].target, ast.Name):
            return None
        source = self._fold(node.generators[0].iter, local, depth)
        if source is None or not isinstance(source.value, (str, bytes, tuple)) or len(source.value) > 1 << 16:
            return None
        name, items, decoded = node.generators[0].target.id, [], source.decoded
        for item in source.value:
            folded = self._fold(node.elt, {**local, name: item}, depth)
            if folded is None:
                return None
            items.append(folded.value)
            decoded = decoded or folded.decoded
        return Folded(tuple(items), decoded)

    def _call(self, node: ast.Call, local: dict[str, Any], depth: int) -> Folded | None:
        arguments = [self._fold(argument, local, depth) for argument in node.args]
        first = arguments[0] if arguments else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if isinstance(node.func, ast.Attribute):
            method = self._method(node.func, arguments, local, depth)
            if method is not None:
                return method
        if name == "map" and len(node.args) == 2 and getattr(node.args[0], "id", "") == "chr":
            second = arguments[1]
            return Folded(tuple(map(chr, second.value)), True) if second is not None else None
        if first is None:
            return None
        value = first.value
        if name in _DECODERS:
            return Folded(_DECODERS[name](value), True)
        if name in ("decompress",) and isinstance(node.func, ast.Attribute):
            module = getattr(node.func.value, "id", "zlib")
            return Folded(_DECOMPRESSORS.get(module, _decompress)(value), True)
        if name == "decode" and len(arguments) > 1 and arguments[1] is not None:  # codecs.decode(x, "rot13")
            return Folded(codecs.decode(value, arguments[1].value), True)
        if name == "chr" and isinstance(value, int):
            return Folded(chr(value), True)
        if name == "ord" and isinstance(value, str):
            return Folded(ord(value))
        if name in ("bytes", "bytearray") and isinstance(value, (tuple, bytes)):
            return Folded(bytes(value), first.decoded or isinstance(value, tuple))
        if name in ("list", "tuple", "reversed") and isinstance(value, (tuple, str, bytes)):
            items = tuple(value)
            return Folded(items[::-1], True) if name == "reversed" else Folded(items, first.decoded)
        if name == "str" and len(arguments) == 1:
            return Folded(str(value), first.decoded, first.partial)
        if name == "str" and isinstance(value, bytes):
            return Folded(value.decode(errors="replace"), first.decoded)
        if name == "range" and all(argument is not None for argument in arguments):
            bounds = range(*(argument.value for argument in arguments if argument is not None))
            return Folded(tuple(bounds)) if len(bounds) <= 1 << 16 else None
        return None

    def _method(
        self, func: ast.Attribute, arguments: Sequence[Folded | None], local: dict[str, Any], depth: int
    ) -> Folded | None:
        base = self._fold(func.value, local, depth)
        if base is None or not isinstance(base.value, (str, bytes)):
            return None
        values = [argument.value for argument in arguments if argument is not None]
        decoded = base.decoded or any(argument.decoded for argument in arguments if argument is not None)
        complete = len(values) == len(arguments)
        if func.attr == "join" and complete and len(values) == 1:
            return Folded(base.value.join(values[0]), decoded)
        if func.attr == "format" and isinstance(base.value, str):
            if complete and not _wide(base.value):
                with contextlib.suppress(LookupError, ValueError, AttributeError):
                    return Folded(base.value.format(*values), decoded)
            return Folded(base.value.replace("{}", UNKNOWN), decoded, True)
        if func.attr == "decode" and isinstance(base.value, bytes) and complete:
            encoding = values[0] if values else "utf-8"
            return Folded(codecs.decode(base.value, encoding), decoded or encoding in _ODD_CODECS)
        if func.attr == "encode" and isinstance(base.value, str) and complete:
            return Folded(base.value.encode(*values), decoded)
        if func.attr in _TEXT_METHODS and complete:
            return Folded(getattr(base.value, func.attr)(*values), decoded)
        return None


def _single_assignments(tree: ast.Module) -> dict[str, ast.expr]:
    counts: Counter[str] = Counter()
    values: dict[str, ast.expr] = {}
    for node in walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            counts[node.id] += 1
        elif isinstance(node, ast.arg):
            counts[node.arg] += 1
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value and isinstance(node.target, ast.Name):
            values[node.target.id] = node.value
    return {name: value for name, value in values.items() if counts[name] == 1}


def _slice_parts(node: ast.Slice) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    return node.lower, node.upper, node.step


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, tuple)) else 1


def _small(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= 4096
    return _size(value) <= MAX_SIZE


def _wide(template: str) -> bool:
    """Whether a format asks for a padding of many characters."""
    return any(len(digits) > 4 for digits in "".join(c if c.isdigit() else " " for c in template).split())
