"""HTML by the standard library's event parser: headings, paragraphs, ``pre`` blocks, tables, lists.

Events are all that chunking needs, so no tree is built: nesting of any depth costs nothing, and a depth that no
page for people has is refused. Navigation, scripts and styles are left out.
"""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser

from stitchcuda.knowledge.model import Block
from stitchcuda.knowledge.readers import Unreadable

MAX_DEPTH = 1000
"""Open elements; more is refused as hostile."""

_HEADING = {f"h{n}": n for n in range(1, 7)}
_SKIP = frozenset(
    {"script", "style", "nav", "footer", "noscript", "svg", "template", "form", "button", "select", "aside"}
)
_BREAK = frozenset(
    {
        "p",
        "div",
        "section",
        "article",
        "ul",
        "ol",
        "table",
        "tr",
        "dl",
        "dt",
        "dd",
        "blockquote",
        "main",
        "header",
        "body",
    }
)
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr", "param"}
)
_PILCROW = re.compile(r"[¶\uf0c1]\s*$")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self.title = ""
        self._open: list[str] = []
        self._skipping = 0
        self._pre = 0
        self._heading = 0
        self._in_title = False
        self._buffer: list[str] = []

    def _flush(self, kind: str = "text", level: int = 0) -> None:
        text = "".join(self._buffer)
        self._buffer.clear()
        if kind == "code":
            if text.strip():
                self.blocks.append(Block("code", "```\n" + text.strip("\n") + "\n```"))
            return
        text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
        text = re.sub(r"\n{2,}", "\n", text).strip()
        if not text:
            return
        if kind == "heading":
            self.blocks.append(Block("heading", _PILCROW.sub("", text).strip(), level=level))
        else:
            self.blocks.append(Block("text", text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self._open.append(tag)
            if len(self._open) > MAX_DEPTH:
                raise Unreadable(f"nests more than {MAX_DEPTH} HTML elements; no page for people does")
        if tag in _SKIP:
            self._skipping += 1
        elif tag == "title":
            self._in_title = True
        elif self._skipping:
            return
        elif tag == "pre":
            if not self._pre:
                self._flush()
            self._pre += 1
        elif tag in _HEADING and not self._pre:
            self._flush()
            self._heading = _HEADING[tag]
        elif self._pre or self._heading:
            if tag == "br":
                self._buffer.append("\n")
        elif tag in _BREAK and tag not in ("tr",):
            self._flush()
        elif tag == "li":
            self._buffer.append("\n- ")
        elif tag in ("br", "tr"):
            self._buffer.append("\n")
        elif tag in ("td", "th"):
            self._buffer.append(" | ")
        elif tag == "code":
            self._buffer.append("`")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._open[-32:]:
            return
        while self._open:
            closed = self._open.pop()
            self._close(closed)
            if closed == tag:
                break

    def _close(self, tag: str) -> None:
        if tag in _SKIP:
            self._skipping = max(0, self._skipping - 1)
        elif tag == "title":
            self._in_title = False
        elif self._skipping:
            return
        elif tag == "pre" and self._pre:
            self._pre -= 1
            if not self._pre:
                self._flush("code")
        elif tag in _HEADING and self._heading:
            self._flush("heading", self._heading)
            self._heading = 0
        elif self._pre or self._heading:
            return
        elif tag in _BREAK and tag not in ("tr",):
            self._flush()
        elif tag == "code":
            self._buffer.append("`")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._skipping:
            self._buffer.append(data if self._pre else re.sub(r"\s+", " ", data))

    def finish(self) -> None:
        self.close()
        self._flush("code" if self._pre else "text")


def read(text: str, name: str) -> tuple[str, list[Block]]:
    """The page's title (its ``title`` element, else its first heading) and its blocks."""
    reader = _Reader()
    reader.feed(text)
    reader.finish()
    title = " ".join(reader.title.split())[:200]
    if not title:
        title = next((b.text for b in reader.blocks if b.kind == "heading"), "")
    return title or posixpath.basename(name), reader.blocks
