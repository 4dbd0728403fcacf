"""C and C++ headers (and CUDA sources): every declaration with its doc comment, as one passage under its symbol.

A scanner, not a compiler: it follows comments, braces, statements and preprocessor branches, which is enough to
bind ``cudaMallocAsync`` to its comment, an enumerator to its explanation and a member to its class, and it reads
what no compiler here could (headers of libraries that are not installed whole). Takes linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stitchcuda.knowledge.chunking import LIMIT, TARGET, pack, slug
from stitchcuda.knowledge.model import Block, Chunk
from stitchcuda.knowledge.readers import doccomment
from stitchcuda.knowledge.readers.declarations import (
    NAME,
    TYPE,
    declared_name,
    function_name,
    is_initializer,
    template_free,
    type_name,
)

_SCAN = re.compile(
    r"(?P<block>/\*.*?(?:\*/|\Z))"
    r"|(?P<line>//[^\n]*(?:\n[ \t]*//[^\n]*)*)"
    r"|(?P<string>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<cpp>^[ \t]*\#(?:[^\n\\/]|\\\n|\\.|/(?![*/]))*)"
    r"|(?P<mark>[{};,])",
    re.DOTALL | re.MULTILINE,
)
_ACCESS = re.compile(r"^\s*(?:public|private|protected)\s*:(?!:)\s*")
_DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)(\([^)]*\))?\s*(.*)", re.DOTALL)
_HOST_MACRO = re.compile(r"(?<!define )\b__DEF_IF_HOST\b")
"""CUDA's device intrinsics end in this macro instead of a semicolon."""
_INTERNAL = frozenset({"detail", "details", "internal", "__detail", "__internal", "__4"})
_SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")
_MAX_BODY = 6000
_OWN_CHUNK = 100
"""Characters of explanation from which on an enumerator is a passage of its own."""


@dataclass
class _Scope:
    kind: str
    name: str
    doc: str = ""
    head: str = ""
    items: list[tuple[str, str, str]] = field(default_factory=list)
    """Fields or enumerators: (symbol, text, words)."""
    start: int = 0


class _Headers:
    """One pass over a file. ``chunks`` holds the result."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.with_bodies = name.lower().endswith(_SOURCES)
        self.chunks: list[Chunk] = []
        self.scopes: list[_Scope] = []
        self.groups: list[str] = []
        self.group_titles: dict[str, str] = {}
        self.branches: list[int] = []
        self.doc = ""
        self.statement: list[str] = []
        self.statement_start = -1
        self.skipping = 0
        self.initializing = 0
        self.body: tuple[str, str, str, int] | None = None
        self.last: tuple[_Scope, int] | None = None
        self.undocumented: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    # -- where we are

    def _title(self, symbol: str, doc: str = "") -> tuple[str, ...]:
        named = self.group_titles.get(doccomment.group_of(doc), "") or (self.groups[-1] if self.groups else "")
        return (self.name, *((named,) if named else ()), symbol)

    def _is_internal(self) -> bool:
        return any(part in _INTERNAL for scope in self.scopes for part in scope.name.split("::"))

    def _qualified(self, symbol: str) -> str:
        names = [s.name for s in self.scopes if s.kind in ("namespace", "type") and s.name]
        return "::".join([*names, symbol])

    # -- what is found

    def _emit(self, symbol: str, signature: str, doc: str, extra: tuple[str, ...] = ()) -> None:
        signature = re.sub(r"\n\s*\n+", "\n", signature).strip()
        code = Block("code", f"```cpp\n{signature}\n```")
        described = doccomment.blocks_of(doc)
        lead = doccomment.brief(described)
        packed = pack([code, *described], self.name)
        if self._is_internal():
            return
        title = self._title(symbol, doc)
        for chunk in packed:
            text = chunk.text if chunk is packed[0] else f"`{symbol}`, continued\n\n{chunk.text}"
            self.chunks.append(Chunk(title, text, "symbol", (symbol, *extra), anchor=slug(symbol), lead=lead))

    def _declare(self, statement: str) -> None:
        statement = _ACCESS.sub("", statement)
        while _ACCESS.match(statement):
            statement = _ACCESS.sub("", statement)
        text = " ".join(statement.split())
        doc, self.doc = self.doc, ""
        if not text or text.startswith(("friend ", "using namespace", "static_assert")) or len(text) > 4000:
            return
        symbol = declared_name(text)
        if not symbol:
            return
        inside = self.scopes[-1] if self.scopes else None
        if inside is not None and inside.kind == "type" and ("(" not in text or text.startswith("using ")):
            inside.items.append((symbol, text + ";", doccomment.clean(doc) if doc else ""))
            self.last = (inside, len(inside.items) - 1)
            return
        signature = statement.strip("\n") + ";"
        if doc:
            self._emit(self._qualified(symbol), signature, doc)
        elif "(" in text and not symbol.startswith("operator") and re.match(r"[A-Za-z_\[~:]", text):
            self._undocumented(self._qualified(symbol), text + ";")

    def _undocumented(self, symbol: str, signature: str) -> None:
        if not self._is_internal():
            scope = tuple(s.name for s in self.scopes if s.name)
            self.undocumented.setdefault(scope, []).append((symbol, signature))

    def _open(self, start: int, position: int) -> None:
        statement = "".join(self.statement)
        text = " ".join(_ACCESS.sub("", statement).split())
        bare = template_free(text)
        kind, name = "body", ""
        match = TYPE.search(bare)
        before_paren = bare.split("(")[0] if match else ""
        if bare.startswith('extern "C"') or (text == "" and not self.scopes):
            kind = "plain"
        elif match and (match.start() < len(before_paren) and not function_name(bare[: match.start()] or " ")):
            head = match.group(1)
            if head == "namespace":
                names = NAME.findall(bare[match.end() :])
                kind, name = "namespace", ("::".join(n for n in names if n != "inline") if names else "")
            else:
                kind = "enum" if head.startswith("enum") else "type"
                name = type_name(bare, match.end())
                if function_name(bare) and bare.rstrip().endswith(")") and ":" not in bare and "alignas" not in bare:
                    kind = "body" if not re.search(r"__align__|__declspec|__attribute__", bare) else kind
        scope = _Scope(kind, name, self.doc if kind in ("type", "enum") else "", text, start=start)
        if kind == "body":
            symbol = function_name(text)
            if symbol:
                self.body = (self._qualified(symbol), statement.strip("\n"), self.doc, start)
            self.skipping = 1
        else:
            self.scopes.append(scope)
        self.doc = "" if kind != "plain" else self.doc
        self._restart()

    def _close_body(self, end: int) -> None:
        if self.body is None:
            return
        symbol, signature, doc, start = self.body
        self.body = None
        source = self.text[start:end].strip("\n")
        if self.with_bodies and len(source) <= _MAX_BODY:
            self._emit(symbol, source, doc)
        elif doc:
            self._emit(symbol, signature + ";", doc)
        elif not symbol.rsplit("::", 1)[-1].startswith("operator"):
            self._undocumented(symbol, " ".join(signature.split()) + ";")

    def _close_scope(self, tail: str) -> None:
        if not self.scopes:
            return
        scope = self.scopes.pop()
        if scope.kind not in ("type", "enum"):
            return
        aliases = [n for n in NAME.findall(tail) if not n.isupper()] if "typedef" in scope.head else []
        name = aliases[-1] if aliases else scope.name
        if not name or not (scope.items or scope.doc) or self._is_internal():
            return
        qualified = self._qualified(name)
        extra = tuple(n for n in (scope.name, *aliases) if n and n != name)
        intro = doccomment.clean(scope.doc) if scope.doc else ""
        if not scope.items:
            self._emit(qualified, scope.head + ";", scope.doc, extra)
            return
        if len(intro) > TARGET // 2:
            self._emit(qualified, scope.head + ";", scope.doc, extra)
            intro = ""
        self._emit_items(scope, qualified, extra, intro)

    def _emit_items(self, scope: _Scope, qualified: str, extra: tuple[str, ...], intro: str) -> None:
        """Fields or enumerators of a type, a few to a chunk, each with its words."""
        head = f"`{' '.join(scope.head.split())[:300]}`" + (f"\n\n{intro}" if intro else "")
        lines: list[str] = []
        symbols: list[str] = []
        size = len(head)

        def flush() -> None:
            nonlocal lines, symbols, size
            if lines:
                text = head + "\n\n" + "\n".join(lines)
                names = (qualified, *extra, *symbols) if scope.kind == "enum" else (qualified, *extra)
                self.chunks.append(Chunk(self._title(qualified), text, "symbol", names, anchor=slug(qualified)))
            lines, symbols, size = [], [], len(head)

        for symbol, declared, said in scope.items:
            if scope.kind == "enum" and len(said) >= _OWN_CHUNK:
                text = f"`{declared}` of `{qualified}`\n\n{said}"[:LIMIT]
                title = (*self._title(qualified), symbol)
                lead = doccomment.brief([Block("text", said)])
                self.chunks.append(Chunk(title, text, "symbol", (symbol,), anchor=slug(symbol), lead=lead))
                continue
            line = f"- `{declared}`" + (f": {' '.join(said.split())}" if said else "")
            line = line[:LIMIT]
            if lines and size + len(line) > TARGET:
                flush()
            lines.append(line)
            symbols.append(symbol)
            size += len(line) + 1
        flush()

    def _restart(self) -> None:
        self.statement = []
        self.statement_start = -1

    # -- the pass

    def _comment(self, comment: str) -> None:
        if self.skipping or doccomment.is_license(comment):
            return
        if doccomment.is_trailing(comment):
            if self.last is not None:
                scope, index = self.last
                symbol, declared, words = scope.items[index]
                scope.items[index] = (symbol, declared, f"{words} {doccomment.clean(comment)}".strip())
            return
        group, title = doccomment.group_title(comment)
        if group:
            self.group_titles[group] = title
        if re.search(r"[\\@]\{", comment):
            self.groups.append(title)
            return
        if group and "defgroup" in comment:
            return
        if re.search(r"[\\@]\}", comment):
            if self.groups:
                self.groups.pop()
            return
        if doccomment.is_doc(comment) or (len(comment) > 60 and comment.startswith("/*")):
            self.doc = comment
            if comment.startswith("/*\n//") and "PTX ISA" in comment:
                self._ptx(comment)
        elif comment.startswith("//") and len(comment) > 40 and not self.doc:
            self.doc = comment

    def _ptx(self, comment: str) -> None:
        """libcu++'s generated instruction wrappers: the comment holds the PTX form and the C++ declaration."""
        self.doc = ""
        inner = comment[2:-2].strip("\n")
        instruction = re.match(r"//\s*([\w.:]+)", inner)
        declared = function_name(re.sub(r"//[^\n]*|PTX ISA[^\n]*", "", inner))
        symbols = tuple(
            n for n in (f"cuda::ptx::{declared}" if declared else "", instruction.group(1) if instruction else "") if n
        )
        if symbols:
            text = f"```cpp\n{inner}\n```"
            self.chunks.append(Chunk(self._title(symbols[0]), text, "symbol", symbols, anchor=slug(symbols[0])))

    def _preprocessor(self, line: str) -> None:
        directive = line.lstrip()[1:].lstrip()
        if directive.startswith("if"):
            self.branches.append(len(self.scopes))
        elif directive.startswith(("else", "elif")) and self.branches:
            del self.scopes[self.branches[-1] :]
        elif directive.startswith("endif") and self.branches:
            self.branches.pop()
        elif not self.skipping and (match := _DEFINE.match(line)):
            doc, self.doc = self.doc, ""
            if doc and doccomment.is_doc(doc):
                self._emit(match.group(1), line.strip()[:_MAX_BODY], doc)

    def run(self) -> list[Chunk]:
        """Scan the file and return its chunks in reading order, undocumented declarations last."""
        position = 0
        for match in _SCAN.finditer(self.text):
            if not self.skipping and not self.initializing:
                self._code(self.text[position : match.start()], position)
            position = match.end()
            group, value = match.lastgroup, match.group()
            if group in ("block", "line"):
                self._comment(value)
            elif group == "cpp":
                self._preprocessor(value)
            elif group == "string":
                if not self.skipping and not self.initializing:
                    self._code(value, match.start())
            else:
                self._mark(value, match.start())
        self._flush_undocumented()
        return self.chunks

    def _code(self, piece: str, start: int) -> None:
        if piece and (self.statement or piece.strip()):
            if self.statement_start < 0:
                self.statement_start = start + len(piece) - len(piece.lstrip())
            self.statement.append(piece)

    def _mark(self, mark: str, position: int) -> None:
        if self.initializing:
            self.initializing += {"{": 1, "}": -1}.get(mark, 0)
            return
        if self.skipping:
            self.skipping += {"{": 1, "}": -1}.get(mark, 0)
            if self.skipping == 0:
                self._close_body(position + 1)
                self._restart()
            return
        in_enum = bool(self.scopes) and self.scopes[-1].kind == "enum"
        if mark == "," and not in_enum:
            self.statement.append(",")
        elif mark == "{" and is_initializer("".join(self.statement)):
            self.initializing = 1
            self.statement.append("{}")
        elif mark == "{":
            self._open(self.statement_start if self.statement_start >= 0 else position, position)
        elif mark == ";":
            self._declare("".join(self.statement))
            self._restart()
        else:
            if in_enum:
                self._enumerator("".join(self.statement))
            self._restart()
            if mark == "}":
                tail = re.match(r"[^;{}]{0,200};", self.text[position + 1 : position + 220])
                self.doc = ""
                self._close_scope(tail.group() if tail else "")

    def _enumerator(self, statement: str) -> None:
        text = " ".join(statement.split())
        name = NAME.match(text)
        doc, self.doc = self.doc, ""
        if name:
            scope = self.scopes[-1]
            scope.items.append((name.group(), text, doccomment.clean(doc) if doc else ""))
            self.last = (scope, len(scope.items) - 1)

    def _flush_undocumented(self) -> None:
        """Declarations without a comment, a few to a chunk: found by their symbols."""
        for scope, found in self.undocumented.items():
            lines: dict[str, None] = {}
            symbols: dict[str, None] = {}
            for symbol, signature in [*found, ("", "")]:
                size = sum(map(len, lines))
                if lines and (not symbol or size + len(signature) > TARGET):
                    text = "```cpp\n" + "\n".join(lines) + "\n```"
                    title = (self.name, *(("::".join(scope),) if scope else ()), "declarations")
                    self.chunks.append(Chunk(title, text, "symbol", tuple(symbols), anchor=slug(next(iter(symbols)))))
                    lines, symbols = {}, {}
                if symbol:
                    lines[signature[:LIMIT]] = None
                    symbols[symbol] = None


def read(text: str, name: str) -> list[Chunk]:
    """Chunks of a header, one or more to a documented declaration, with the symbols they declare."""
    return _Headers(_HOST_MACRO.sub(";", text), name).run()
