"""Embedders: an OpenAI-compatible endpoint over real HTTP, and what is refused."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.embedding import EndpointEmbedder, VectorCache, embed_missing, embedder_from
from stitchcuda.knowledge.ingest import add_documents
from stitchcuda.knowledge.model import Chunk, Tags
from stitchcuda.knowledge.reading import prepare
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.snippets import add_run
from stitchcuda.knowledge.store import Store
from tests.knowledge.test_snippets import make_run

WORDS = ("warp", "graph", "cache")


class _Endpoint(http.server.BaseHTTPRequestHandler):
    """Counts words; answers out of order, as servers may."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers.get("Authorization"), request["model"]))  # type: ignore[attr-defined]
        rows = [
            {"index": n, "embedding": [float(text.count(word)) for word in WORDS]}
            for n, text in enumerate(request["input"])
        ]
        status = 401 if request["model"] == "locked" else 200
        answer = {"data": rows[::-1]} if request["model"] != "odd" else {"data": rows[:-1]}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def endpoint() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def base_url(server: http.server.ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/v1"


def test_an_endpoint_gives_unit_vectors_in_the_order_of_the_texts(
    endpoint: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    embedder = embedder_from(base_url(endpoint), "words")
    assert embedder is not None
    vectors = embedder.embed(["warp warp", "graph"] * 50)
    assert vectors.shape == (100, 3)
    assert np.allclose(vectors[0], [1, 0, 0])
    assert np.allclose(vectors[1], [0, 1, 0])
    assert endpoint.seen[0] == ("/v1/embeddings", "Bearer secret", "words")  # type: ignore[attr-defined]


def test_vectors_are_kept_and_the_nearest_found(endpoint: http.server.ThreadingHTTPServer, store: Store) -> None:
    chunks = [Chunk(("a",), "warp words"), Chunk(("b",), "graph words"), Chunk(("c",), "cache and warp")]
    add_documents(store, "t", [("d", "d", "1", [prepare(c) for c in chunks])])
    embedder = EndpointEmbedder(base_url(endpoint), "words")
    assert embed_missing(store, embedder) == 3
    cache = VectorCache(store, embedder)
    assert [chunk for chunk, _ in cache.nearest("warp", 2)] == [1, 3]
    add_documents(store, "t", [("d", "d", "2", [prepare(chunks[1])])])
    embed_missing(store, embedder)
    assert len(cache.nearest("warp", 5)) == 1


def test_programs_that_won_are_not_met_through_vectors(
    endpoint: http.server.ThreadingHTTPServer, store: Store, tmp_path: Path
) -> None:
    add_run(store, make_run(tmp_path / "run"))
    add_documents(store, "t", [("d", "d", "1", [prepare(Chunk(("a",), "warp words", tags=Tags(("sm_90",))))])])
    embedder = EndpointEmbedder(base_url(endpoint), "words")
    assert embed_missing(store, embedder) == 2
    for arch in ([], ["sm_90"]):
        assert [p.kind for p in Searcher(store, embedder).search("warp", arch=arch)] == ["prose"]


@pytest.mark.parametrize(("model", "reason"), [("locked", "401"), ("odd", "for 2 texts")])
def test_an_endpoint_that_misbehaves_is_named(
    endpoint: http.server.ThreadingHTTPServer, model: str, reason: str
) -> None:
    with pytest.raises(KnowledgeError, match=reason):
        EndpointEmbedder(base_url(endpoint), model).embed(["a", "b"])


def test_what_is_no_embedder_is_wrong_use(tmp_path: Path) -> None:
    assert embedder_from(None) is None
    with pytest.raises(KnowledgeError, match="model name"):
        embedder_from("http://127.0.0.1:9/v1")
    with pytest.raises(KnowledgeError, match="no usable answer"):
        EndpointEmbedder("http://127.0.0.1:9/v1", "m").embed(["a"])
    with pytest.raises(KnowledgeError, match="no sentence-transformers model"):
        embedder_from(str(tmp_path))
