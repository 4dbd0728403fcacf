"""Opening the knowledge index: where it lies, and that the shipped notes are in it."""

from __future__ import annotations

import os
from pathlib import Path

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.notes_loader import sync_notes
from stitchcuda.knowledge.store import Store

FILE = "knowledge.sqlite"


def default_path() -> Path:
    """``knowledge.sqlite`` in the cache folder: ``STITCHCUDA_CACHE``, else ``stitchcuda`` in the XDG cache folder."""
    named = os.environ.get("STITCHCUDA_CACHE")
    if named:
        return Path(named) / FILE
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stitchcuda" / FILE


def open_index(path: Path | None = None, *, writable: bool = False) -> Store:
    """Open the index at ``path`` (default ``default_path()``) with the shipped notes in it.

    Where the file or its folder cannot be written, an existing index is opened as it is, and without one the notes
    alone are served from memory; with ``writable`` that is an error instead. Raises ``KnowledgeError``.
    """
    path = path or default_path()
    try:
        store = Store(path)
        sync_notes(store)
        return store
    except KnowledgeError as error:
        if writable or "schema" in str(error):
            raise
        if path.is_file() and not os.access(path, os.W_OK):
            return Store(path, read_only=True)
        if path.exists():
            raise
    memory = Store(None)
    sync_notes(memory)
    return memory
