"""C++ and CUDA source as the Judge sees it: the tokens that count, in one layout, without a word its author chose.

Comments, what ``#if 0`` switches off and directives that only speak (``#error``, ``#pragma message``) are left out.
Strings become three dots, but inline assembly keeps its opcodes. It reads tokens and expands nothing: a macro is shown
as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stitchcuda.reward.judge_names import Names, words

_TOKEN = re.compile(
    r"""
      (?P<include>^[ \t]*\#[ \t]*include[ \t]*(?:<[^>\n]*>|"[^"\n]*"))
    | (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s"]{0,16})\((?P<inside>.*?)(?:\)(?P=fence)"|\Z))
    | (?P<string>(?:u8|[uUL])?"(?P<text>(?:\\.|[^"\\\n])*)"?)
    | (?P<number>0[xX][0-9a-fA-F']+[uUlLzZ]*|0[bB][01']+[uUlLzZ]*
        |(?:[0-9][0-9']*(?:\.[0-9']*)?|\.[0-9][0-9']*)(?:[eE][+-]?[0-9]+)?(?:bf16|[uUlLfFhHzZ])*)
    | (?P<character>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?)
    | (?P<word>(?:[^\W\d]|\$|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8})(?:\w|\$|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8})*)
    | (?P<newline>\n)
    | (?P<mark>\#\#|<<<|>>>|<=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=
        |[-+*/%&|^~!<>=?:;,.(){}\[\]\#@])
    """,
    re.X | re.S | re.M,
)
_ASSEMBLY = re.compile(r"[A-Za-z_$][\w$.]*|%\d+|0x[0-9a-fA-F]+|[0-9]+|[-+*/%&|^~!<>=?:;,.(){}\[\]@]")
_CONSTRAINT = re.compile(r"[=+&%]*[A-Za-z0-9]{1,2}")
_ASM = frozenset({"asm", "__asm__", "__asm"})
_PRAGMAS = frozenset({"unroll", "nounroll", "omp", "once", "GCC"})
_CONDITIONS = frozenset({"if", "ifdef", "ifndef"})
_CODE = frozenset({"define", "undef", "elif", "else", "endif"}) | _CONDITIONS
_TIGHT_BEFORE = frozenset({",", ";", ")", "]", ".", "->", "::", ">>>", "<<<"})
_TIGHT_AFTER = frozenset({"(", "[", ".", "->", "::", "!", "~", "<<<", ">>>"})
_OPENED_APART = frozenset({"if", "for", "while", "switch", "return"})
_SAID = '"..."'

Token = tuple[str, str]
"""A kind, as the groups of ``_TOKEN`` are named, and its text as written."""


def native_text(source: str, names: Names) -> str:
    """The neutral text of one file."""
    writer = _Writer()
    reader = _Reader(names)
    for line in _compiled(_lines(source)):
        if line[0][0] == "include":
            writer.directive([_include(line[0][1])])
        elif line[0] == ("mark", "#"):
            writer.directive(["#" + line[1][1], *reader.read(line[2:])])
        else:
            for token in reader.read(line):
                writer.token(token)
    return writer.text()


def _lines(source: str) -> Iterator[list[Token]]:
    """Tokens by line, comments and empty lines left out."""
    line: list[Token] = []
    text = re.sub(r"\\[ \t]*\n", "", source.replace("\r\n", "\n").replace("\r", "\n"))
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        kind = {"inside": "raw", "fence": "raw", "text": "string"}.get(kind, kind)
        if kind == "newline":
            if line:
                yield line
            line = []
        elif kind in ("string", "raw"):
            line.append((kind, match["text" if kind == "string" else "inside"]))
        elif kind == "include":
            if line:
                yield line
            yield [(kind, match["include"])]
            line = []
        elif kind != "comment":
            line.append((kind, match[0]))
    if line:
        yield line


def _compiled(lines: Iterator[list[Token]]) -> Iterator[list[Token]]:
    """Lines that a compiler may see: directives that only speak and what ``#if 0`` encloses are left out."""
    off = 0
    for line in lines:
        if line[0] != ("mark", "#"):
            if not off:
                yield line
            continue
        name = line[1][1] if len(line) > 1 and line[1][0] == "word" else ""
        if off:
            off += (name in _CONDITIONS) - (name == "endif")
            if off == 1 and name in ("else", "elif"):
                off = 0
                yield [("mark", "#"), ("word", "if"), ("number", "1")]
        elif name == "if" and [text for _, text in line[2:]] in (["0"], ["false"]):
            off = 1
        elif name in _CODE or (name == "pragma" and len(line) > 2 and line[2][1] in _PRAGMAS):
            yield line


def _include(text: str) -> str:
    name = re.split(r'[<>"]', text)[1].strip()
    return f"#include <{name}>" if name in words("headers") else "#include <...>"


class _Reader:
    """Turns tokens into neutral ones; knows whether it is inside of inline assembly."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._announced = False
        self._depth = 0

    def read(self, line: list[Token]) -> list[str]:
        out: list[str] = []
        for kind, text in line:
            if kind in ("string", "raw"):
                linkage = text == "C" and out[-1:] == ["extern"]
                said = '"C"' if linkage else self._assembly(text) if self._depth else _SAID
                if not (said == _SAID and out and out[-1] == _SAID):
                    out.append(said)
                continue
            if kind == "word":
                if text in _ASM:
                    self._announced = True
                out.append(self.names.identifier(text))
            elif kind == "number":
                out.append(_number(text))
            elif kind == "character":
                out.append("'?'")
            else:
                self._count(text)
                out.append(text)
        return out

    def _count(self, mark: str) -> None:
        if mark == "(" and (self._announced or self._depth):
            self._depth += 1
            self._announced = False
        elif mark == ")" and self._depth:
            self._depth -= 1
        elif mark in ("{", "}", ";") and not self._depth:
            self._announced = False

    def _assembly(self, text: str) -> str:
        if _CONSTRAINT.fullmatch(text) or text in ("memory", ""):
            return f'"{text}"'
        code = re.sub(r"\\[nrt]", "\n", text)
        code = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", code, flags=re.S)
        parts = [
            self.names.assembly(part) if part[0].isalpha() or part[0] in "_$" else part
            for part in _ASSEMBLY.findall(code)
        ]
        return f'"{" ".join(parts)}"'


def _number(text: str) -> str:
    """A number in one spelling: hexadecimal only for runs of bits, so that none spells a word."""
    plain = text.replace("'", "").lower()
    if plain.startswith(("0x", "0b")):
        value = int(plain.rstrip("ulz"), 0)
        ones = value // (value & -value) if value else 1
        return hex(value) if ones & (ones + 1) == 0 else str(value)
    return plain


class _Writer:
    """Lays tokens out by braces and semicolons, whatever the layout was."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._now: list[str] = []
        self._level = 0
        self._parentheses = [0]

    def directive(self, tokens: list[str]) -> None:
        """One line of its own."""
        self._end()
        self._lines.append(_joined(tokens))

    def token(self, token: str) -> None:
        """The next one."""
        if token == "}":
            self._end()
            self._level = max(self._level - 1, 0)
            if len(self._parentheses) > 1:
                self._parentheses.pop()
            self._now = ["}"]
            return
        if self._now == ["}"] and token not in (";", ",", ")", "(", "else", "while"):
            self._end()
        self._now.append(token)
        if token in ("(", ")"):
            self._parentheses[-1] = max(self._parentheses[-1] + (1 if token == "(" else -1), 0)
        elif token == "{":
            self._end()
            self._level += 1
            self._parentheses.append(0)
        elif token == ";" and not self._parentheses[-1]:
            self._end()

    def text(self) -> str:
        """All of it."""
        self._end()
        return "\n".join(self._lines)

    def _end(self) -> None:
        if self._now:
            self._lines.append("  " * min(self._level, 16) + _joined(self._now))
        self._now = []


def _joined(tokens: list[str]) -> str:
    out = ""
    before = ""
    for token in tokens:
        tight = token in _TIGHT_BEFORE or before in _TIGHT_AFTER or (token == ">" and before == ">")
        if token in ("(", "[") and before not in _OPENED_APART:
            tight = tight or before[-1:].isalnum() or before in (")", "]", ">", "_") or before.endswith("_")
        out += token if tight or not out else " " + token
        before = token
    return out
