"""Vectors: optional embedders, and the nearest passages by cosine.

Two embedders: a sentence-transformers model in a folder on this machine (the extra ``knowledge``), and any
OpenAI-compatible ``/embeddings`` endpoint that the user names. Nothing is downloaded for either.
Fusion with the lexical ranking is in ``knowledge.search``.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stitchcuda.errors import KnowledgeError, ToolMissing
from stitchcuda.knowledge.store import Store

Vectors = NDArray[np.float32]
_BATCH = 64


class Embedder(Protocol):
    """Turns texts into unit vectors. ``name`` keys the stored vectors; ``weight`` is its share in the fusion."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32, one row a text, each of length 1. Raises ``KnowledgeError`` when it cannot."""
        ...


def _unit(matrix: Vectors) -> Vectors:
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.maximum(norms, 1e-12), dtype=np.float32)


class LocalEmbedder:
    """A sentence-transformers model from a folder on this machine; nothing is downloaded.

    Passages are read up to ``max_tokens`` tokens (the title path comes first): more costs time in proportion.

    Raises ``ToolMissing`` without the package, ``KnowledgeError`` when the folder holds no such model.
    """

    weight = 0.5

    def __init__(self, folder: Path, *, max_tokens: int = 128) -> None:
        if not (folder / "modules.json").is_file():
            raise KnowledgeError(
                f"{folder} holds no sentence-transformers model (modules.json is missing); give such a folder, "
                "or the URL of an embeddings endpoint"
            )
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ToolMissing(
                "a local embedder needs sentence-transformers: pip install 'stitchcuda[knowledge]'"
            ) from error
        try:
            self._model: Any = SentenceTransformer(str(folder), local_files_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise KnowledgeError(f"the model in {folder} cannot be loaded: {error}") from error
        self._model.max_seq_length = min(max_tokens, self._model.max_seq_length or max_tokens)
        self._folder = folder

    @property
    def name(self) -> str:
        """The folder's name: two models need folders of two names."""
        return f"local:{self._folder.resolve().name}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See ``Embedder``."""
        encoded = self._model.encode(list(texts), batch_size=_BATCH, show_progress_bar=False)
        return _unit(np.asarray(encoded, dtype=np.float32))


class EndpointEmbedder:
    """An OpenAI-compatible endpoint: ``POST BASE/embeddings``; the key is read from the environment when it runs."""

    weight = 1.0

    def __init__(
        self, base_url: str, model: str, *, key_variable: str = "OPENAI_API_KEY", timeout_s: float = 60
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise KnowledgeError(f"{base_url} is not an http(s) URL of an embeddings endpoint")
        self._url, self._model = base_url.rstrip("/") + "/embeddings", model
        self._key_variable, self._timeout = key_variable, timeout_s

    @property
    def name(self) -> str:
        """The model's name at its endpoint."""
        return f"endpoint:{self._model}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See ``Embedder``."""
        rows: list[Vectors] = []
        for start in range(0, len(texts), _BATCH):
            rows.append(self._request([t[:8000] for t in texts[start : start + _BATCH]]))
        return _unit(np.concatenate(rows)) if rows else np.zeros((0, 1), np.float32)

    def _request(self, texts: list[str]) -> Vectors:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self._key_variable):
            headers["Authorization"] = f"Bearer {key}"
        body = json.dumps({"model": self._model, "input": texts, "encoding_format": "float"}).encode()
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                answer = json.loads(response.read(256 << 20))
            data = sorted(answer["data"], key=lambda item: item["index"])
            matrix = np.asarray([item["embedding"] for item in data], dtype=np.float32)
        except urllib.error.HTTPError as error:
            raise KnowledgeError(
                f"the embeddings endpoint answered {error.code} {error.reason}; check URL, model and key"
            ) from error
        except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError) as error:
            raise KnowledgeError(f"the embeddings endpoint at {self._url} gave no usable answer: {error}") from error
        if matrix.ndim != 2 or matrix.shape[0] != len(texts):
            raise KnowledgeError(f"the embeddings endpoint gave {matrix.shape} values for {len(texts)} texts")
        return matrix


def embedder_from(setting: str | None, model: str | None = None) -> Embedder | None:
    """The embedder a user names: None or ``none``; a folder with a sentence-transformers model; or the base URL of an
    endpoint, with ``model``. Raises ``KnowledgeError`` for what is neither."""
    if setting in (None, "", "none"):
        return None
    assert setting is not None
    if not setting.startswith(("http://", "https://")):
        return LocalEmbedder(Path(setting).expanduser())
    if not model:
        raise KnowledgeError("an embeddings endpoint needs a model name: --embedding-model")
    return EndpointEmbedder(setting, model)


def embed_missing(store: Store, embedder: Embedder, *, progress: Callable[[int], None] | None = None) -> int:
    """Give every chunk without a vector of this embedder one; returns how many were made."""
    made = 0
    while True:
        rows = store.connection.execute(
            "SELECT c.id, c.title, c.text FROM chunks c LEFT JOIN vectors v ON v.chunk = c.id AND v.model = ? "
            "WHERE v.chunk IS NULL ORDER BY c.id LIMIT 1024",
            (embedder.name,),
        ).fetchall()
        if not rows:
            return made
        vectors = embedder.embed([" > ".join(json.loads(title)) + "\n" + text[:4000] for _, title, text in rows])
        half = vectors.astype(np.float16)
        with store.writing() as db:
            db.executemany(
                "INSERT OR IGNORE INTO vectors(chunk, model, vector) SELECT ?1, ?2, ?3 WHERE EXISTS "
                "(SELECT 1 FROM chunks WHERE id = ?1)",
                ((row[0], embedder.name, half[n].tobytes()) for n, row in enumerate(rows)),
            )
        made += len(rows)
        if progress is not None:
            progress(made)


class VectorCache:
    """The vectors of one embedder in memory (float32, 4 bytes x dimension a chunk), reloaded when the index changes."""

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._store, self._embedder = store, embedder
        self._generation: tuple[int, int] | None = None
        self._ids: NDArray[np.int64] = np.zeros(0, np.int64)
        self._matrix: Vectors = np.zeros((0, 1), np.float32)

    def nearest(self, query: str, count: int) -> list[tuple[int, float]]:
        """Chunk ids with cosine similarity to ``query``, nearest first; empty where no vectors are stored."""
        self._refresh()
        if not len(self._ids):
            return []
        vector = self._embedder.embed([query])[0]
        if vector.shape[0] != self._matrix.shape[1]:
            raise KnowledgeError(
                f"the index holds vectors of {self._matrix.shape[1]} dimensions, the embedder gives {vector.shape[0]}; "
                "add the sources again with this embedder under another model name"
            )
        similarity = self._matrix @ vector
        count = min(count, len(similarity))
        top = np.argpartition(-similarity, count - 1)[:count]
        top = top[np.argsort(-similarity[top], kind="stable")]
        return [(int(self._ids[i]), float(similarity[i])) for i in top]

    def _refresh(self) -> None:
        generation = self._store.generation()
        if generation == self._generation:
            return
        rows = self._store.connection.execute(
            "SELECT chunk, vector FROM vectors WHERE model = ? ORDER BY chunk", (self._embedder.name,)
        ).fetchall()
        self._ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        if rows:
            flat = np.frombuffer(b"".join(row[1] for row in rows), np.float16)
            self._matrix = flat.reshape(len(rows), -1).astype(np.float32)
        self._generation = generation
