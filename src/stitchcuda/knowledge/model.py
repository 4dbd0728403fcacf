"""The data of the knowledge base: what readers produce, what is stored, what a search returns.

Reading is in ``knowledge.readers``, storing in ``knowledge.store``, ranking in ``knowledge.search``.
Plain dataclasses, so that the confined reading process starts fast and needs the standard library alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["prose", "code", "symbol", "snippet"]
"""prose: running text, possibly with its code; code: a block standing alone; symbol: a declaration with its
doc comment; snippet: a program that won a measured run."""


@dataclass(frozen=True, slots=True)
class Block:
    """One structural element of a document, in reading order. ``heading`` blocks set the title path."""

    kind: Literal["heading", "text", "code"]
    text: str
    level: int = 0
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tags:
    """What a passage is about. Empty means that it holds for everything."""

    arch: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def merged(self, other: Tags) -> Tags:
        """These tags, with ``other``'s where these are empty."""
        return Tags(self.arch or other.arch, self.libraries or other.libraries)


NO_TAGS = Tags()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One retrievable passage: at most a few hundred words unless a single code block is longer.

    ``lead`` is the sentence that says what it is about (a declaration's brief): indexed as its title is.
    """

    title: tuple[str, ...]
    text: str
    kind: Kind = "prose"
    symbols: tuple[str, ...] = ()
    tags: Tags = NO_TAGS
    anchor: str = ""
    lead: str = ""


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """What a reader made of one file."""

    title: str
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A file that was not taken, and why, in words for the user."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Passage:
    """One search result. ``score`` only orders the passages of one search; it has no unit."""

    chunk_id: int
    reference: str
    title: str
    text: str
    source: str
    version: str
    score: float
    kind: Kind
    symbols: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def citation(self) -> str:
        """Source, version and place in one line, for people and journals."""
        version = f" {self.version}" if self.version else ""
        return f"{self.title} ({self.source}{version})"


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One thing the user added (or the shipped notes), as ``knowledge list`` shows it."""

    uri: str
    version: str
    documents: int
    chunks: int
    added: str


@dataclass(frozen=True, slots=True)
class AddReport:
    """What one ``add`` did to the index."""

    uri: str
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    skipped: int = 0
    refused: list[Refusal] = field(default_factory=list)
    seconds: float = 0.0
