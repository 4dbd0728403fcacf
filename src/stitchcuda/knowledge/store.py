"""The index on disk: one SQLite file with sources, documents, chunks, full-text tokens, symbols and vectors.

Write-ahead logging lets several processes read while one writes; a document is replaced in one transaction, so
that a reader sees it whole, old or new. Ranking is in ``knowledge.search``, reading files in ``knowledge.reading``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.model import SourceInfo
from stitchcuda.knowledge.reading import Prepared
from stitchcuda.knowledge.tokens import FTS_TOKENIZER
from stitchcuda.knowledge.tokens import VERSION as TOKENS_VERSION

SCHEMA = f"1.{TOKENS_VERSION}"
BUSY_SECONDS = 60.0

_TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sources (
    id INTEGER PRIMARY KEY, uri TEXT NOT NULL UNIQUE, version TEXT NOT NULL, added TEXT NOT NULL);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL REFERENCES sources(id), name TEXT NOT NULL,
    title TEXT NOT NULL, digest TEXT NOT NULL, chunks INTEGER NOT NULL, length INTEGER NOT NULL,
    UNIQUE (source, name));
CREATE TABLE tagsets (id INTEGER PRIMARY KEY, arch TEXT NOT NULL, libraries TEXT NOT NULL, UNIQUE (arch, libraries));
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents(id), ordinal INTEGER NOT NULL,
    kind TEXT NOT NULL, tagset INTEGER NOT NULL REFERENCES tagsets(id), length INTEGER NOT NULL,
    anchor TEXT NOT NULL, title TEXT NOT NULL, symbols TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX chunks_document ON chunks(document);
CREATE TABLE symbols (
    form TEXT NOT NULL, chunk INTEGER NOT NULL REFERENCES chunks(id), PRIMARY KEY (form, chunk)) WITHOUT ROWID;
CREATE INDEX symbols_chunk ON symbols(chunk);
CREATE TABLE terms (term TEXT PRIMARY KEY, documents INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE vectors (
    chunk INTEGER NOT NULL REFERENCES chunks(id), model TEXT NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY (model, chunk)) WITHOUT ROWID;
CREATE INDEX vectors_chunk ON vectors(chunk);
CREATE TABLE snippets (
    chunk INTEGER PRIMARY KEY REFERENCES chunks(id), digest TEXT NOT NULL, fingerprint TEXT NOT NULL,
    operators TEXT NOT NULL, shapes TEXT NOT NULL, speedup REAL NOT NULL, facts TEXT NOT NULL);
CREATE VIRTUAL TABLE passages USING fts5(title, symbols, body, tokenize="{FTS_TOKENIZER}");
"""

_CHUNK_TABLES = (
    ("passages", "rowid"),
    ("symbols", "chunk"),
    ("vectors", "chunk"),
    ("snippets", "chunk"),
    ("chunks", "id"),
)
"""Where a chunk has rows, and under which column; the chunk itself last."""


class Store:
    """An open index, a connection a thread. Raises ``KnowledgeError`` when it cannot be opened."""

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        """``path`` None keeps the index in memory, for this object alone."""
        self.path, self.read_only = path, read_only
        self._local = threading.local()
        self._pending: Counter[str] = Counter()
        self._all: list[sqlite3.Connection] = []
        self._memory = sqlite3.connect(":memory:", check_same_thread=False) if path is None else None
        if path is not None and not read_only:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise KnowledgeError(f"cannot make the folder {path.parent} for the index: {error}") from error
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            raise KnowledgeError(
                f"{path} cannot be used as a knowledge index ({error}); name another with --index, or delete it"
            ) from error

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        if self._memory is not None:
            return self._memory
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            assert self.path is not None
            mode = "rwc"
            if self.read_only:
                # Without its folder's consent SQLite cannot keep a shared-memory file: then nobody writes either.
                mode = "ro" if os.access(self.path.parent, os.W_OK) else "ro&immutable=1"
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(
                uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA cache_size=-65536")
            connection.execute("PRAGMA mmap_size=268435456")
            self._local.connection = connection
            self._all.append(connection)
        return connection

    def _prepare(self) -> None:
        db = self.connection
        db.isolation_level = None
        if self.path is not None and not self.read_only:
            db.execute("PRAGMA journal_mode=WAL")
        version = self._version()
        if version is None and not self.read_only:
            with self.writing():
                if self._version() is None:
                    for statement in _TABLES.split(";\n"):
                        if statement.strip():
                            db.execute(statement)
                    db.execute("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA,))
            version = self._version()
        if version != SCHEMA:
            raise KnowledgeError(
                f"{self.path} is an index of schema {version}, this program writes {SCHEMA}; "
                "delete it and add your sources again"
            )

    def _version(self) -> str | None:
        db = self.connection
        # One statement, one view: another process may make the tables between two.
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if "meta" not in names:
            return "of another program" if names else None
        row = db.execute("SELECT value FROM meta WHERE key='schema'").fetchone()
        return str(row[0]) if row else None

    def close(self) -> None:
        """Close every connection; the object is of no use afterwards."""
        for connection in [*self._all, *([self._memory] if self._memory is not None else [])]:
            connection.close()
        self._all.clear()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; other writers wait, readers do not. Rolled back when the block raises.

        A Store has one writing thread at a time; several processes may write, each with a Store of its own.
        """
        db = self.connection
        if db.in_transaction:
            yield db
            return
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise KnowledgeError(f"the index {self.path} cannot be written: {error}") from error
        self._pending.clear()
        try:
            yield db
            self._flush_counts()
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    # -- meta

    def meta(self, key: str) -> str | None:
        """A value kept with the index, or None."""
        row = self.connection.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return str(row[0]) if row else None

    def set_meta(self, key: str, value: str) -> None:
        """Keep a value with the index."""
        with self.writing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def generation(self) -> tuple[int, int]:
        """Changes whenever a search could give something else: for caches of what was loaded from the index."""
        db = self.connection
        return int(db.execute("PRAGMA data_version").fetchone()[0]), db.total_changes

    # -- writing

    def source(self, uri: str, version: str) -> int:
        """The id of the source ``uri``, made or updated with ``version`` and the present time."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self.writing() as db:
            db.execute(
                "INSERT INTO sources(uri, version, added) VALUES (?,?,?) "
                "ON CONFLICT(uri) DO UPDATE SET version=excluded.version, added=excluded.added",
                (uri, version, now),
            )
            return int(db.execute("SELECT id FROM sources WHERE uri=?", (uri,)).fetchone()[0])

    def digests(self, source: int) -> dict[str, str]:
        """Content digest by document name."""
        return dict(self.connection.execute("SELECT name, digest FROM documents WHERE source=?", (source,)))

    def put_document(self, source: int, name: str, title: str, digest: str, prepared: Sequence[Prepared]) -> list[int]:
        """Put a document in place of the one of this name; returns the ids of its chunks."""
        with self.writing() as db:
            self.drop_documents(source, [name])
            length = sum(p.length for p in prepared)
            cursor = db.execute(
                "INSERT INTO documents(source, name, title, digest, chunks, length) VALUES (?,?,?,?,?,?)",
                (source, name, title, digest, len(prepared), length),
            )
            document = cursor.lastrowid
            row = db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()
            first = int(row[0]) + 1
            ids = list(range(first, first + len(prepared)))
            tagsets = {tags: self._tagset(tags.arch, tags.libraries) for tags in {p.chunk.tags for p in prepared}}
            db.executemany(
                "INSERT INTO chunks VALUES (?,?,?,?,?,?,?,?,?,?)",
                (
                    (
                        i, document, n, p.chunk.kind, tagsets[p.chunk.tags], p.length, p.chunk.anchor,
                        json.dumps(p.chunk.title), json.dumps(p.chunk.symbols), p.chunk.text,
                    )
                    for n, (i, p) in enumerate(zip(ids, prepared, strict=True))
                ),
            )  # fmt: skip
            db.executemany(
                "INSERT INTO passages(rowid, title, symbols, body) VALUES (?,?,?,?)",
                ((i, p.title_tokens, p.symbol_tokens, p.body_tokens) for i, p in zip(ids, prepared, strict=True)),
            )
            db.executemany(
                "INSERT OR IGNORE INTO symbols VALUES (?,?)",
                ((form, i) for i, p in zip(ids, prepared, strict=True) for form in p.forms),
            )
            self._count(((p.title_tokens, p.symbol_tokens, p.body_tokens) for p in prepared), 1)
            return ids

    def drop_documents(self, source: int, names: Iterable[str]) -> int:
        """Remove documents by name with all that hangs on them; returns how many there were."""
        dropped = 0
        with self.writing() as db:
            for name in names:
                row = db.execute("SELECT id FROM documents WHERE source=? AND name=?", (source, name)).fetchone()
                if row is None:
                    continue
                dropped += 1
                ids = [r[0] for r in db.execute("SELECT id FROM chunks WHERE document=?", row)]
                tokens = [
                    db.execute("SELECT title, symbols, body FROM passages WHERE rowid=?", (i,)).fetchone() for i in ids
                ]
                self._count(tokens, -1)
                for table, column in _CHUNK_TABLES:
                    db.executemany(f"DELETE FROM {table} WHERE {column}=?", ((i,) for i in ids))
                db.execute("DELETE FROM documents WHERE id=?", row)
        return dropped

    def remove_source(self, uri: str) -> int:
        """Remove a source whole; returns its number of documents. Raises ``KnowledgeError`` if there is none such."""
        with self.writing() as db:
            row = db.execute("SELECT id FROM sources WHERE uri=?", (uri,)).fetchone()
            if row is None:
                known = ", ".join(r[0] for r in db.execute("SELECT uri FROM sources ORDER BY uri LIMIT 8"))
                raise KnowledgeError(f"no source {uri!r} in the index; it has: {known or 'none'}")
            dropped = self.drop_documents(row[0], list(self.digests(row[0])))
            db.execute("DELETE FROM sources WHERE id=?", row)
        return dropped

    def optimize(self) -> None:
        """Merge the full-text index's segments: worth it after thousands of new chunks."""
        with self.writing() as db:
            db.execute("INSERT INTO passages(passages) VALUES ('optimize')")

    def _tagset(self, arch: tuple[str, ...], libraries: tuple[str, ...]) -> int:
        key = (" ".join(arch), " ".join(libraries))
        db = self.connection
        db.execute("INSERT OR IGNORE INTO tagsets(arch, libraries) VALUES (?,?)", key)
        return int(db.execute("SELECT id FROM tagsets WHERE arch=? AND libraries=?", key).fetchone()[0])

    def _count(self, rows: Iterable[tuple[str, str, str]], sign: int) -> None:
        """Keep the number of chunks that hold each term: what BM25's idf and the pruning of queries need."""
        for title, symbols, body in rows:
            tokens = set(f"{title} {symbols} {body}".split())
            if sign > 0:
                self._pending.update(tokens)
            else:
                self._pending.subtract(tokens)

    def _flush_counts(self) -> None:
        self.connection.executemany(
            "INSERT INTO terms VALUES (?1, ?2) ON CONFLICT(term) DO UPDATE SET documents = documents + ?2",
            sorted((term, n) for term, n in self._pending.items() if n),
        )
        self._pending.clear()

    # -- reading

    def totals(self) -> tuple[int, float]:
        """Number of chunks, and their mean length in tokens."""
        row = self.connection.execute(
            "SELECT coalesce(sum(chunks), 0), coalesce(sum(length), 0) FROM documents"
        ).fetchone()
        return int(row[0]), float(row[1]) / max(1, int(row[0]))

    def sources(self) -> list[SourceInfo]:
        """Everything in the index, oldest first."""
        rows = self.connection.execute(
            "SELECT s.uri, s.version, count(d.id), coalesce(sum(d.chunks), 0), s.added FROM sources s "
            "LEFT JOIN documents d ON d.source = s.id GROUP BY s.id ORDER BY s.id"
        )
        return [SourceInfo(*row) for row in rows]
