"""Chunks from blocks: passages packed along a document's structure.

A chunk never crosses a heading, a code block is never split and stays with the paragraph before it where both
fit, and long prose is cut between paragraphs, then sentences. Not for reading files: that is ``knowledge.readers``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stitchcuda.knowledge.model import NO_TAGS, Block, Chunk, Kind, Tags

TARGET = 1200
"""Characters a chunk is filled up to."""
LIMIT = 2000
"""Characters that a chunk of prose never exceeds; with a code block it may."""

_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|\n")


def slug(text: str) -> str:
    """A heading as an anchor, as Markdown renderers make it: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def split_text(text: str, limit: int = LIMIT) -> list[str]:
    """Cut ``text`` into pieces of at most ``limit`` characters, at sentence ends or line ends where there are any."""
    if len(text) <= limit:
        return [text]
    pieces: list[str] = []
    current = ""
    for sentence in _SENTENCE.split(text):
        while len(sentence) > limit:
            cut = sentence.rfind(" ", 1, limit)
            cut = cut if cut > 0 else limit
            if current:
                pieces.append(current)
                current = ""
            pieces.append(sentence[:cut])
            sentence = sentence[cut:].lstrip()
        if current and len(current) + 1 + len(sentence) > limit:
            pieces.append(current)
            current = sentence
        else:
            current = f"{current} {sentence}" if current else sentence
    if current:
        pieces.append(current)
    return pieces


class _Section:
    """The blocks gathered under one title path until the next heading."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0
        self.has_text = False
        self.has_code = False
        self.symbols: dict[str, None] = {}

    def add(self, block: Block) -> None:
        self.parts.append(block.text)
        self.size += len(block.text) + 2
        self.has_code |= block.kind == "code"
        self.has_text |= block.kind == "text"
        self.symbols.update(dict.fromkeys(block.symbols))

    def chunk(self, title: tuple[str, ...], anchor: str, tags: Tags) -> Chunk:
        kind: Kind = "code" if self.has_code and not self.has_text else "prose"
        return Chunk(title, "\n\n".join(self.parts), kind, tuple(self.symbols), tags, anchor)


def pack(blocks: Iterable[Block], document: str, tags: Tags = NO_TAGS) -> list[Chunk]:
    """Pack ``blocks`` in reading order into chunks; every title path starts with ``document``, its title."""
    chunks: list[Chunk] = []
    path: list[tuple[int, str]] = []
    section = _Section()

    def title() -> tuple[str, ...]:
        names = [name for _, name in path]
        return tuple(names) if names and names[0] == document else (document, *names)

    def flush() -> None:
        nonlocal section
        if section.parts:
            chunks.append(section.chunk(title(), slug(path[-1][1]) if path else "", tags))
        section = _Section()

    for block in blocks:
        if block.kind == "heading":
            flush()
            while path and path[-1][0] >= block.level:
                path.pop()
            path.append((block.level, " ".join(block.text.split())[:200]))
        elif block.kind == "code":
            if section.parts and section.size + len(block.text) > LIMIT and section.has_code:
                flush()
            section.add(block)
            if section.size > TARGET:
                flush()
        else:
            for piece in split_text(block.text):
                if section.parts and section.size + len(piece) > TARGET:
                    flush()
                section.add(Block("text", piece, symbols=block.symbols))
    flush()
    return chunks
