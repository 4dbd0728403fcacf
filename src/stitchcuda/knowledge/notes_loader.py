"""The shipped notes: reading their format, and keeping them in the user's index without any set-up.

The format is described in ``notes/README.md``. Notes are trusted files of this package, so they are read here and
not in the reading process.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.chunking import pack
from stitchcuda.knowledge.model import Tags
from stitchcuda.knowledge.readers import markdown
from stitchcuda.knowledge.store import SCHEMA, Store
from stitchcuda.knowledge.tagging import normalize_arch

URI = "notes"
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fenced code block. ``check`` is how it is tested: compile, fragment (not at all), or nothing said."""

    language: str
    check: str
    options: dict[str, str]
    code: str


@dataclass(frozen=True, slots=True)
class Note:
    """One note as written."""

    name: str
    title: str
    body: str
    tags: Tags
    sources: tuple[str, ...]
    fragments: tuple[Fragment, ...] = field(repr=False)

    @property
    def words(self) -> int:
        """Words of prose, code left out."""
        return len(_FENCE.sub("", self.body).split())


def parse_note(name: str, text: str) -> Note:
    """Parse one note. Raises ``KnowledgeError`` naming the note and what its front matter lacks."""
    front, body = markdown.split_front_matter(text)
    try:
        data = tomllib.loads(front)
        unknown = set(data) - {"title", "arch", "libraries", "sources"}
        if unknown:
            raise ValueError(f"unknown keys {', '.join(sorted(unknown))}")
        tags = Tags(normalize_arch(data["arch"]), tuple(str(lib).lower() for lib in data["libraries"]))
        sources = tuple(str(s) for s in data["sources"])
        title = str(data["title"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise KnowledgeError(f"note {name}: front matter between +++ lines is wrong ({error})") from error
    if not sources:
        raise KnowledgeError(f"note {name}: names no sources; every note says where its facts come from")
    fragments = []
    for match in _FENCE.finditer(body):
        words = match.group(1).split()
        options = dict(w.split("=", 1) for w in words[2:] if "=" in w)
        fragments.append(
            Fragment(words[0] if words else "", words[1] if len(words) > 1 else "", options, match.group(2))
        )
    return Note(name, title, body, tags, sources, tuple(fragments))


def _files() -> Iterator[tuple[str, str]]:
    folder = resources.files("stitchcuda.knowledge.notes")
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".md") and entry.name != "README.md":
            yield entry.name, entry.read_text(encoding="utf-8")


def load_notes() -> list[Note]:
    """All shipped notes, by name. Raises ``KnowledgeError`` for one that breaks the format."""
    return [parse_note(name, text) for name, text in _files()]


@lru_cache(maxsize=1)
def notes_digest() -> str:
    """Changes with any note and with the index's schema."""
    h = hashlib.sha256(SCHEMA.encode())
    for name, text in _files():
        h.update(name.encode() + b"\0" + text.encode() + b"\0")
    return h.hexdigest()


def sync_notes(store: Store) -> bool:
    """Bring the index's notes up to this package's; True if anything had to change. One transaction, so that
    processes that start together find them whole."""
    digest = notes_digest()
    if store.meta("notes") == digest:
        return False
    from stitchcuda import __version__
    from stitchcuda.knowledge.ingest import add_documents, digest_of, prepare

    with store.writing():
        if store.meta("notes") == digest:
            return False
        documents = []
        for note in load_notes():
            _, blocks = markdown.read(note.body, note.name)
            chunks = pack(blocks, note.title, note.tags)
            key = digest_of((note.title + note.body).encode(), note.tags, SCHEMA)
            documents.append((note.name, note.title, key, [prepare(chunk) for chunk in chunks]))
        add_documents(store, URI, documents, version=__version__)
        store.set_meta("notes", digest)
    return True
