"""C++ and CUDA source text as tokens: comments removed, strings read, macros expanded, pasted tokens joined.

This is a reader for the static rules, not a preprocessor: both branches of a conditional are seen, included system
headers are not, and what cannot be made sense of is passed through.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

MAX_TOKENS = 400_000
MAX_EXPANDED = 60_000
"""Tokens that macros may add to a text."""
MAX_DEPTH = 16

Kind = Literal["name", "number", "string", "char", "mark", "directive"]


@dataclass(frozen=True)
class Token:
    """``text`` is what a string holds, without quotes and with escapes read; ``line`` counts from 1."""

    kind: Kind
    text: str
    line: int


@dataclass(frozen=True)
class Macro:
    """A ``#define``; ``parameters`` is None for one without parentheses."""

    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]
    variadic: bool = False


@dataclass
class Source:
    """One text: its tokens as written, its directives, and its macros."""

    tokens: list[Token]
    directives: list[Token] = field(default_factory=list)
    macros: dict[str, Macro] = field(default_factory=dict)


_TOKEN = re.compile(
    r"""[ \t\r\f\v]*+(?:(?P<newline>\n)
    |(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<raw>(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?(?:\)(?P=tag)"|\Z))
    |(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z))
    |(?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<number>\.?[0-9](?:[eEpP][+-]|['A-Za-z0-9_.])*)
    |(?P<mark>\#\#|::|->\*?|<<<|>>>|\+\+|--|[=!<>+*/%&|^-]=|&&|\|\||.))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read(text: str, first_line: int = 1) -> Source:
    """Split ``text``; its first line counts as ``first_line``. What is given is shared: do not change it."""
    return _read(text, first_line, True)


@functools.lru_cache(maxsize=128)
def _read(text: str, first_line: int, fresh: bool) -> Source:
    """``fresh`` says that a ``#`` at the start begins a directive."""
    # A continued line is one line; NUL keeps the count of lines right.
    joined = text.replace("\\\r\n", "\0").replace("\\\n", "\0")
    source = Source([])
    line, position = first_line, 0
    while len(source.tokens) < MAX_TOKENS:
        match = _TOKEN.match(joined, position)
        if match is None:
            break
        kind = match.lastgroup or "mark"
        piece = match[kind]
        position = match.end()
        if kind == "newline":
            fresh, line = True, line + 1
        elif kind == "mark" and piece == "#" and fresh:
            position = _end_of_directive(joined, match.start(kind))
            piece = joined[match.start(kind) : position]
            _directive(source, piece, line)
            line += piece.count("\n") + piece.count("\0")
        elif piece == "\0":
            line += 1
        elif kind == "comment":
            line += piece.count("\n") + piece.count("\0")
        else:
            fresh = False
            source.tokens.append(_token(kind, piece, line))
            if kind in ("raw", "string"):
                line += piece.count("\n") + piece.count("\0")
    return source


def expand(source: Source, macros: dict[str, Macro]) -> list[Token]:
    """The tokens with ``macros`` expanded, and neighbouring strings joined."""
    budget = [MAX_EXPANDED]
    return _join_strings(_expand(source.tokens, macros, frozenset(), 0, budget))


def _token(kind: str, piece: str, line: int) -> Token:
    if kind == "raw":
        inner = piece[piece.index('"') + 1 :]
        tag, _, body = inner.partition("(")
        return Token("string", body.removesuffix(f'){tag}"').replace("\0", "\\\n"), line)
    if kind == "string":
        body = piece[piece.index('"') + 1 :].removesuffix('"').replace("\0", "")
        return Token("string", _ESCAPE.sub(_unescape, body), line)
    if kind == "char":
        return Token("char", _ESCAPE.sub(_unescape, piece[piece.index("'") + 1 : -1]), line)
    if kind == "name":
        return Token("name", piece, line)
    return Token("number" if kind == "number" else "mark", piece, line)


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _PLAIN.get(code, code)


def _end_of_directive(text: str, start: int) -> int:
    """The end of the line, comments that span lines included."""
    position = start
    while position < len(text):
        if text.startswith("/*", position):
            end = text.find("*/", position + 2)
            position = len(text) if end < 0 else end + 2
        elif text[position] == "\n":
            return position
        else:
            position += 1
    return position


def _directive(source: Source, text: str, line: int) -> None:
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text.replace("\0", " "), flags=re.DOTALL)
    source.directives.append(Token("directive", " ".join(plain.split()), line))
    match = re.match(r"#\s*define\s+([A-Za-z_]\w*)(\(([^)]*)\))?(.*)", plain, re.DOTALL)
    if match is None:
        return
    body = tuple(Token(each.kind, each.text, line) for each in _read(match[4], line, False).tokens)
    if match[2] is None:
        source.macros.setdefault(match[1], Macro(None, body))
        return
    names = [name.strip() for name in match[3].split(",") if name.strip()]
    variadic = bool(names) and names[-1].endswith("...")
    if variadic:
        names[-1] = names[-1].removesuffix("...") or "__VA_ARGS__"
    source.macros.setdefault(match[1], Macro(tuple(names), body, variadic))


def _expand(
    tokens: Sequence[Token], macros: dict[str, Macro], hidden: frozenset[str], depth: int, budget: list[int]
) -> list[Token]:
    out: list[Token] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        macro = macros.get(token.text) if token.kind == "name" and token.text not in hidden else None
        if macro is None or depth > MAX_DEPTH or budget[0] <= 0:
            out.append(token)
            continue
        if macro.parameters is None:
            body: list[Token] = _paste(macro.body, {}, {}, token.line)
        else:
            arguments, after = _arguments(tokens, position)
            if arguments is None:
                out.append(token)
                continue
            position = after
            raw = _by_name(macro, arguments)
            full = {name: _expand(value, macros, hidden, depth + 1, budget) for name, value in raw.items()}
            body = _paste(macro.body, raw, full, token.line)
        budget[0] -= len(body) + 1
        # What a macro gives may be the name of another one whose parentheses follow.
        inner = _expand(body, macros, hidden | {token.text}, depth + 1, budget)
        if (
            inner
            and inner[-1].kind == "name"
            and inner[-1].text in macros
            and position < len(tokens)
            and tokens[position].text == "("
        ):
            out += inner[:-1]
            out += _expand([inner[-1], *tokens[position:]], macros, hidden | {token.text}, depth + 1, budget)
            return out
        out += inner
    return out


def _arguments(tokens: Sequence[Token], position: int) -> tuple[list[list[Token]] | None, int]:
    if position >= len(tokens) or tokens[position].text != "(" or tokens[position].kind != "mark":
        return None, position
    arguments: list[list[Token]] = [[]]
    depth = 0
    for index in range(position, len(tokens)):
        token = tokens[index]
        if token.kind == "mark" and token.text in "([{":
            depth += 1
            if depth == 1:
                continue
        elif token.kind == "mark" and token.text in ")]}":
            depth -= 1
            if depth == 0:
                return arguments, index + 1
        if token.kind == "mark" and token.text == "," and depth == 1:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return None, position


def _by_name(macro: Macro, arguments: list[list[Token]]) -> dict[str, list[Token]]:
    names = macro.parameters or ()
    if macro.variadic and len(arguments) > len(names):
        comma = Token("mark", ",", 0)
        rest: list[Token] = []
        for part in arguments[len(names) - 1 :]:
            rest += [*([comma] if rest else []), *part]
        arguments = [*arguments[: len(names) - 1], rest]
    return {name: arguments[index] if index < len(arguments) else [] for index, name in enumerate(names)}


def _paste(body: Sequence[Token], raw: dict[str, list[Token]], full: dict[str, list[Token]], line: int) -> list[Token]:
    """A macro's body with its arguments put in, ``#x`` made strings and ``a ## b`` joined."""
    out: list[Token] = []
    join = False
    for index, token in enumerate(body):
        following = body[index + 1].text if index + 1 < len(body) else ""
        if token.text == "##" and token.kind == "mark":
            join = True
            continue
        if token.text == "#" and token.kind == "mark" and following in raw:
            continue
        if index and body[index - 1].text == "#" and body[index - 1].kind == "mark" and token.text in raw:
            pieces = [Token("string", " ".join(part.text for part in raw[token.text]), line)]
        elif token.kind == "name" and token.text in raw:
            pieces = list(raw[token.text] if join or following == "##" else full[token.text])
        else:
            pieces = [Token(token.kind, token.text, line)]
        if join and out and pieces:
            left = out.pop()
            kind = left.kind if left.kind in ("name", "string") else pieces[0].kind
            out.append(Token(kind, left.text + pieces[0].text, line))
            pieces = pieces[1:]
        join = False
        out += [Token(piece.kind, piece.text, line) for piece in pieces]
    return out


def _join_strings(tokens: Iterable[Token]) -> list[Token]:
    out: list[Token] = []
    for token in tokens:
        if token.kind == "string" and out and out[-1].kind == "string":
            out[-1] = Token("string", out[-1].text + token.text, out[-1].line)
        else:
            out.append(token)
    return out
