"""The programs that the model writes: nodes, each a launch line with a kernel body (``own``) or a call of a stock
kernel (``lib``). Reads and refuses; nothing is compiled here. What a body may use is in ``source``.

    lib softmax a -> u
    own elem 256 1
    if (i < n) y[i] = u[i] * 0.5f + b[i];

A program can cheat with this: it may leave everything, or all that is hard, to ``lib``, or leave an operator out.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass

from coder_experiment.operators import BINARY, CLAMP, OPERATORS, SCALAR

KINDS = ("elem", "thread", "warp", "block", "tile")
"""elem: threads over elements; thread, warp and block: so much works on a row; tile: 32 x 32 through shared memory."""
ROW_KINDS = ("thread", "warp", "block")
BUFFERS = ("a", "b", "c", "u", "w", "y")
WRITABLE = ("u", "w", "y")

MAX_NODES, MAX_BODY, MAX_THREADS = 6, 900, 1024

_OWN = re.compile(r"own (elem|thread|warp|block|tile)(?: (\d{1,4}))?(?: (\d))?")
_LIB = re.compile(r"lib (\w+) (\w)(?: (\S+))? -> (\w)")
_LEXEME = re.compile(
    r"\d+\.?\d*(?:e[+-]?\d+)?f?|\.\d+f?|[A-Za-z_]\w*|[-+*/%<>=!&|]=|\+\+|--|&&|\|\||[-+*/%<>=!&|?:;,.(){}\[\]~^]"
)
_FORBIDDEN = {
    *("asm", "static", "extern", "goto", "template", "typedef", "using", "namespace", "struct", "class", "union"),
    *("volatile", "const_cast", "reinterpret_cast", "new", "delete", "throw", "try", "operator", "sizeof", "this"),
    *(
        "clock",
        "clock64",
        "printf",
        "malloc",
        "free",
        "memcpy",
        "memset",
        "system",
        "constexpr",
        "decltype",
        "register",
    ),
}
_BUFFER_NAMES = {"a", "b", "c", "u", "w", "y", "ar", "br", "cr", "ur", "wr", "yr"}


class Refused(Exception):
    """A text that is no program; says why."""


@dataclass(frozen=True)
class Own:
    """A kernel of the program's own: ``threads`` a block, ``vector`` elements a thread (elem)."""

    kind: str
    threads: int
    vector: int
    body: str

    @property
    def text(self) -> str:
        """As a program writes it."""
        numbers = f" {self.threads} {self.vector}" if self.kind == "elem" else f" {self.threads}"
        return f"own {self.kind}{'' if self.kind == 'tile' else numbers}\n{self.body}"


@dataclass(frozen=True)
class Lib:
    """A stock kernel: ``target`` = operator(``source``, ``operand``)."""

    operator: str
    source: str
    operand: str | float | None
    target: str

    @property
    def text(self) -> str:
        """As a program writes it."""
        operand = (
            ""
            if self.operand is None
            else f" {self.operand:g}"
            if isinstance(self.operand, float)
            else f" {self.operand}"
        )
        return f"lib {self.operator} {self.source}{operand} -> {self.target}"


Node = Own | Lib


@dataclass(frozen=True)
class Program:
    """What was written, in order of execution."""

    nodes: tuple[Node, ...]

    @property
    def text(self) -> str:
        """As a model writes it, without the end token."""
        return "\n".join(node.text for node in self.nodes)

    @property
    def own(self) -> tuple[Own, ...]:
        """Kernels of its own."""
        return tuple(node for node in self.nodes if isinstance(node, Own))

    @property
    def lib(self) -> tuple[Lib, ...]:
        """Calls of stock kernels."""
        return tuple(node for node in self.nodes if isinstance(node, Lib))

    @property
    def code(self) -> str:
        """The bodies of its own kernels, lexemes apart by one space each."""
        return " ".join(" ".join(lexemes(node.body)) for node in self.own)

    @property
    def digest(self) -> str:
        """Equal for programs that differ in white space and names of variables only."""
        parts = [
            node.text.split("\n")[0] + "\n" + _renamed(node.body) if isinstance(node, Own) else node.text
            for node in self.nodes
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def parse(text: str) -> Program:
    """Read a program. Raises Refused for whatever is none, or uses what no body may."""
    nodes: list[Node] = []
    head: tuple[str, int, int] | None = None
    body: list[str] = []

    def finish() -> None:
        nonlocal head
        if head is not None:
            nodes.append(Own(*head, _checked("\n".join(body))))
        head = None
        body.clear()

    for line in text.strip().splitlines():
        line = line.rstrip()
        if line.startswith("own "):
            finish()
            head = _launch(line)
        elif line.startswith("lib "):
            finish()
            nodes.append(_call(line))
        elif head is None:
            raise Refused(f"a line before any launch line: {line[:40]!r}")
        elif line:
            body.append(line)
    finish()
    if not nodes:
        raise Refused("no node; begin with a launch line")
    if len(nodes) > MAX_NODES:
        raise Refused(f"{len(nodes)} nodes, at most {MAX_NODES}")
    return Program(tuple(nodes))


def lexemes(body: str) -> list[str]:
    """The tokens of C in a body. Raises Refused for a character that is in none."""
    found, at = [], 0
    for match in _LEXEME.finditer(body):
        if body[at : match.start()].strip():
            raise Refused(f"{body[at : match.start()].strip()[:10]!r} is not allowed in a body")
        found.append(match[0])
        at = match.end()
    if body[at:].strip():
        raise Refused(f"{body[at:].strip()[:10]!r} is not allowed in a body")
    return found


def _launch(line: str) -> tuple[str, int, int]:
    match = _OWN.fullmatch(line)
    if match is None:
        raise Refused(f"no launch line: {line[:40]!r}")
    kind, threads, vector = match[1], int(match[2] or 256), int(match[3] or 1)
    if threads % 32 or not 32 <= threads <= MAX_THREADS:
        raise Refused(f"{threads} threads; take a multiple of 32 up to {MAX_THREADS}")
    if vector not in (1, 4) or (vector == 4 and kind != "elem"):
        raise Refused(f"{vector} elements a thread; elem takes 1 or 4")
    if kind == "tile" and match[2]:
        raise Refused("tile takes no numbers")
    return kind, threads, vector


def _call(line: str) -> Lib:
    match = _LIB.fullmatch(line)
    if match is None:
        raise Refused(f"no call of a stock kernel: {line[:40]!r}")
    name, source, operand, target = match.groups()
    if name not in OPERATORS or source not in BUFFERS or target not in WRITABLE:
        raise Refused(f"no such stock kernel or buffer: {line[:40]!r}")
    kind = OPERATORS[name].kind
    wanted: str | float | None = None
    if kind in (SCALAR, CLAMP):
        try:
            wanted = float(operand or "")
        except ValueError:
            raise Refused(f"{name} takes a number: {line[:40]!r}") from None
        if not abs(wanted) < 1e6:
            raise Refused(f"{name} takes a finite number: {line[:40]!r}")
    elif kind == BINARY:
        if operand not in BUFFERS:
            raise Refused(f"{name} takes a buffer: {line[:40]!r}")
        wanted = operand
    elif operand is not None:
        raise Refused(f"{name} takes no operand: {line[:40]!r}")
    if name == "transpose" and source == target:
        raise Refused("transpose cannot write where it reads")
    return Lib(name, source, wanted, target)


def _checked(body: str) -> str:
    if not body.strip():
        raise Refused("an empty body")
    if len(body) > MAX_BODY:
        raise Refused(f"a body of {len(body)} characters, at most {MAX_BODY}")
    found = lexemes(body)
    for word in found:
        if word in _FORBIDDEN or "__" in word or word.startswith("lib_"):
            raise Refused(f"{word!r} is not allowed in a body")
    for first, second in itertools.pairwise(found):
        if (first, second) == ("*", ")"):
            raise Refused("casts to pointers are not allowed in a body")
    closing = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    for word in found:
        if word in closing.values():
            stack.append(word)
        elif word in closing and (not stack or stack.pop() != closing[word]):
            raise Refused("brackets do not match")
    if stack:
        raise Refused("brackets do not match")
    return body.strip()


def _renamed(body: str) -> str:
    """Lexemes with the variables it declares named by their order."""
    words = lexemes(body)
    names: dict[str, str] = {}
    for before, word in itertools.pairwise(words):
        declared = before in ("float", "int", "float4") and re.match(r"[A-Za-z_]", word)
        if declared and word not in names and word not in _BUFFER_NAMES:
            names[word] = f"_{len(names)}"
    for at, word in enumerate(words):  # "float m = 0.f, s = 0.f;"
        if word == "," and at + 2 < len(words) and words[at + 2] == "=" and words[at + 1] not in _BUFFER_NAMES:
            names.setdefault(words[at + 1], f"_{len(names)}")
    return " ".join(names.get(word, word) for word in words)
