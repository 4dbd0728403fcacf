"""Adding sources to an index: read what changed, replace its documents, drop what is gone.

Ties ``sources`` (bytes), ``reading`` (passages) and ``store`` (the file) together. Adding the same thing twice
changes nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable

from stitchcuda.knowledge.model import NO_TAGS, AddReport, Refusal, Tags
from stitchcuda.knowledge.readers import VERSION, Unreadable
from stitchcuda.knowledge.reading import Prepared, Reader, prepare
from stitchcuda.knowledge.sources import Found, Skipped, SourceFile, open_source, uri_of
from stitchcuda.knowledge.store import Store

_COMMIT_CHUNKS = 4000
_COMMIT_SECONDS = 5.0
OPTIMIZE_FROM = 5000
"""New chunks from which on the full-text index is merged after an add."""


def digest_of(data: bytes, tags: Tags, version: str) -> str:
    """What decides whether a document has changed: its bytes, what the user says about it, and the readers."""
    return hashlib.sha256(repr((VERSION, tags.arch, tags.libraries, version)).encode() + b"\0" + data).hexdigest()


def _retag(prepared: Prepared, tags: Tags) -> Prepared:
    """The user's own tags come before the ones read from the document."""
    if not tags.arch and not tags.libraries:
        return prepared
    from dataclasses import replace

    return replace(prepared, chunk=replace(prepared.chunk, tags=tags.merged(prepared.chunk.tags)))


def add_source(
    store: Store,
    reference: str,
    *,
    version: str = "",
    tags: Tags = NO_TAGS,
    files: Iterable[Found] | None = None,
    uri: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> AddReport:
    """Add or refresh the source ``reference`` (path or URL); ``files`` and ``uri`` override what it yields.

    Documents whose bytes are unchanged are left alone, ones that vanished are removed. A refused file costs itself
    alone and is in the report. Raises ``KnowledgeError`` when the source cannot be used at all.
    """
    started = time.monotonic()
    uri = uri or uri_of(reference)
    found = iter(files if files is not None else open_source(reference))
    first = next(found, None)
    source = store.source(uri, version)
    known = store.digests(source)
    seen: set[str] = set()
    refused: list[Refusal] = []
    added = replaced = unchanged = skipped = chunks = pending_chunks = 0
    committed = time.monotonic()
    batch: list[tuple[str, str, str, list[Prepared]]] = []

    def commit() -> None:
        nonlocal pending_chunks, committed
        with store.writing():
            for name, title, digest, prepared in batch:
                store.put_document(source, name, title, digest, prepared)
        batch.clear()
        pending_chunks = 0
        committed = time.monotonic()

    try:
        with Reader() as reader:
            waiting: tuple[str, str] | None = None

            def collect() -> None:
                nonlocal waiting, added, replaced, chunks, pending_chunks
                if waiting is None:
                    return
                name, digest = waiting
                waiting = None
                try:
                    document = reader.collect()
                except Unreadable as error:
                    refused.append(Refusal(name, str(error)))
                    return
                prepared = [_retag(p, tags) for p in document.chunks]
                batch.append((name, document.title, digest, prepared))
                seen.add(name)
                added, replaced = added + (name not in known), replaced + (name in known)
                chunks += len(prepared)
                pending_chunks += len(prepared)
                if progress is not None:
                    progress(name)

            item = first
            while item is not None:
                if isinstance(item, Refusal):
                    refused.append(item)
                elif isinstance(item, Skipped):
                    skipped += 1
                elif isinstance(item, SourceFile):
                    digest = digest_of(item.data, tags, version)
                    if known.get(item.name) == digest:
                        unchanged += 1
                        seen.add(item.name)
                    else:
                        collect()
                        reader.submit(item.name, item.data)
                        waiting = (item.name, digest)
                        if pending_chunks >= _COMMIT_CHUNKS or (
                            batch and time.monotonic() - committed > _COMMIT_SECONDS
                        ):
                            commit()
                item = next(found, None)
            collect()
            commit()
    except BaseException:
        if not store.digests(source):
            store.remove_source(uri)
        raise
    removed = store.drop_documents(source, sorted(set(known) - seen))
    if not seen:
        store.remove_source(uri)
    if chunks >= OPTIMIZE_FROM:
        store.optimize()
    return AddReport(
        uri, added, replaced, unchanged, removed, chunks, skipped, refused, round(time.monotonic() - started, 3)
    )


def add_documents(
    store: Store, uri: str, documents: Iterable[tuple[str, str, str, list[Prepared]]], *, version: str = ""
) -> None:
    """Replace a source by documents made in this process (name, title, digest, chunks), in one transaction."""
    with store.writing():
        source = store.source(uri, version)
        known = store.digests(source)
        names: set[str] = set()
        for name, title, digest, prepared in documents:
            names.add(name)
            if known.get(name) != digest:
                store.put_document(source, name, title, digest, prepared)
        store.drop_documents(source, sorted(set(known) - names))


__all__ = ["AddReport", "add_documents", "add_source", "digest_of", "prepare"]
