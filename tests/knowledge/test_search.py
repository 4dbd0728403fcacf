"""What comes first, what filters keep out, and that other processes may read and write meanwhile."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.embedding import Vectors, embed_missing
from stitchcuda.knowledge.ingest import add_documents, add_source
from stitchcuda.knowledge.model import Chunk, Tags
from stitchcuda.knowledge.reading import prepare
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.store import Store


def put(store: Store, *chunks: Chunk, uri: str = "test") -> None:
    add_documents(store, uri, [(f"{n}.md", c.title[0], str(n), [prepare(c)]) for n, c in enumerate(chunks)])


def titles(store: Store, query: str, **options: Sequence[str]) -> list[str]:
    return [p.title for p in Searcher(store).search(query, **options)]  # type: ignore[arg-type]


def test_a_declared_symbol_comes_before_a_mention(store: Store) -> None:
    put(
        store,
        Chunk(("mentions",), "cudaMallocAsync cudaMallocAsync cudaMallocAsync is like cudaMalloc"),
        Chunk(("api.h", "cudaMallocAsync"), "Allocates memory with stream order", "symbol", ("cudaMallocAsync",)),
        Chunk(("api.h", "cudaMalloc"), "Allocates memory", "symbol", ("cudaMalloc",)),
    )
    assert titles(store, "what does cudaMallocAsync do")[0] == "api.h > cudaMallocAsync"
    assert titles(store, "cudaMalloc")[0] == "api.h > cudaMalloc"


def test_words_find_a_symbol_by_its_parts(store: Store) -> None:
    put(
        store,
        Chunk(("a",), "", "symbol", ("cublasLtMatmulDescSetAttribute",)),
        Chunk(("b",), "how to write a loop"),
    )
    assert titles(store, "set a matmul descriptor attribute") == ["a"]


def test_a_dotted_prefix_finds_longer_instructions(store: Store) -> None:
    put(store, Chunk(("tma",), "cp.async.bulk.tensor.2d.shared::cluster.global"), Chunk(("ld",), "ld.global.nc"))
    assert titles(store, "cp.async.bulk") == ["tma"]


def test_architectures_filter_what_does_not_hold(store: Store) -> None:
    put(
        store,
        Chunk(("everywhere",), "tensor cores"),
        Chunk(("hopper",), "tensor cores", tags=Tags(("sm_90",))),
        Chunk(("ampere on",), "tensor cores", tags=Tags(("sm_80+",))),
        Chunk(("blackwell",), "tensor cores", tags=Tags(("sm_100",))),
    )
    assert set(titles(store, "tensor cores", arch=["sm_90a"])) == {"everywhere", "hopper", "ampere on"}
    assert set(titles(store, "tensor cores", arch=["ampere"])) == {"everywhere", "ampere on"}
    assert set(titles(store, "tensor cores", arch=["blackwell"])) == {"everywhere", "ampere on", "blackwell"}
    with pytest.raises(ValueError, match="not an architecture"):
        titles(store, "tensor cores", arch=["pascal9000x"])


def test_libraries_filter(store: Store) -> None:
    put(
        store,
        Chunk(("lt",), "epilogue bias", tags=Tags(libraries=("cublas", "cublaslt"))),
        Chunk(("x",), "epilogue bias"),
    )
    assert titles(store, "epilogue bias", libraries=["cublasLt"]) == ["lt"]


def test_repeats_of_one_title_make_room_for_others(store: Store) -> None:
    overloads = [Chunk(("scan.h", "Sum"), f"block wide sum overload {n}", "symbol", ("Sum",)) for n in range(6)]
    put(store, *overloads, Chunk(("reduce.h", "Reduce"), "block wide sum of all", "symbol", ("Reduce",)))
    assert "reduce.h > Reduce" in [p.title for p in Searcher(store).search("block wide sum", limit=3)]


@pytest.mark.parametrize(
    "query",
    ["", "   ", "the of and", '"', "a OR b", "NEAR(x y)", "body:*", "'; DROP TABLE chunks; --", "\0", "x" * 9999],
)
def test_any_query_is_safe(store: Store, query: str) -> None:
    put(store, Chunk(("t",), "words here"))
    Searcher(store).search(query)
    assert titles(store, "words") == ["t"]


def test_an_index_of_another_program_or_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(KnowledgeError, match="cannot be used"):
        Store(tmp_path / "broken.sqlite")
    store = Store(tmp_path / "old.sqlite")
    store.set_meta("schema", "0.1")
    store.close()
    with pytest.raises(KnowledgeError, match=r"schema 0\.1"):
        Store(tmp_path / "old.sqlite")


class Directions:
    """An embedder whose directions are set by hand, so that what the vectors bring is seen."""

    name, weight = "by-hand", 1.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        rows = [[1.0, 0.0] if "warp" in t or "lanes" in t else [0.0, 1.0] for t in texts]
        return np.asarray(rows, dtype=np.float32)


def test_vectors_bring_what_no_word_finds_and_words_keep_their_place(store: Store) -> None:
    put(
        store,
        Chunk(("shuffles",), "exchange between lanes"),
        Chunk(("other",), "a warp is here"),
        Chunk(("far",), "kitchen"),
    )
    assert embed_missing(store, Directions()) == 3
    assert embed_missing(store, Directions()) == 0
    found = [p.title for p in Searcher(store, Directions()).search("warp", limit=2)]
    assert found == ["other", "shuffles"]
    assert titles(store, "warp") == ["other"]


def test_removed_passages_lose_their_vectors(store: Store, documents: Path) -> None:
    (documents / "a.md").write_text("# A\n\nwarp words\n")
    uri = add_source(store, str(documents)).uri
    embed_missing(store, Directions())
    store.remove_source(uri)
    assert store.connection.execute("SELECT count(*) FROM vectors").fetchone() == (0,)
    assert Searcher(store, Directions()).search("warp") == []


READER = """
import sys, time
from pathlib import Path
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.store import Store
searcher = Searcher(Store(Path(sys.argv[1])))
end = time.monotonic() + float(sys.argv[2])
asked = 0
while time.monotonic() < end:
    for passage in searcher.search("common words", limit=20):
        halves = passage.text.split()
        assert halves[0] == halves[-1], passage.text
    assert len(searcher.search("common words", limit=20)) in (10, 20), "a document was seen in part"
    asked += 1
print(asked)
"""
WRITER = """
import sys
from pathlib import Path
from stitchcuda.knowledge.ingest import add_documents
from stitchcuda.knowledge.model import Chunk
from stitchcuda.knowledge.reading import prepare
from stitchcuda.knowledge.store import Store
store = Store(Path(sys.argv[1]))
for n in range(15):
    stamp = f"{sys.argv[2]}v{n}"
    chunks = [prepare(Chunk((f"{sys.argv[2]} {i}",), f"{stamp} common words {stamp}")) for i in range(10)]
    add_documents(store, sys.argv[2], [("d", "d", stamp, chunks)])
"""


def test_readers_see_whole_documents_while_two_writers_replace_them(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    store = Store(path)
    add_documents(
        store, "one", [("d", "d", "0", [prepare(Chunk((f"one {i}",), "s common words s")) for i in range(10)])]
    )

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(code), str(path), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    readers = [start(READER, "2.5") for _ in range(3)]
    writers = [start(WRITER, name) for name in ("one", "two")]
    for process in writers + readers:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        if process in readers:
            assert int(out) > 0
    assert len(Searcher(store).search("common words", limit=50)) == 20
    store.close()


def test_a_writer_killed_half_way_leaves_a_whole_index(tmp_path: Path, documents: Path) -> None:
    path = tmp_path / "index.sqlite"
    for n in range(300):
        (documents / f"{n:03d}.md").write_text("\n\n".join(f"## H{i}\n\ncommon words {n} {i}" for i in range(20)))
    code = (
        "import sys; from pathlib import Path; from stitchcuda.knowledge.ingest import add_source;"
        "from stitchcuda.knowledge.store import Store; add_source(Store(Path(sys.argv[1])), sys.argv[2])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path), str(documents)])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        if sum(p.stat().st_size for p in tmp_path.glob("index.sqlite*")) > 200_000:
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    store = Store(path)
    assert store.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    report = add_source(store, str(documents))
    assert report.added + report.unchanged == 300
    assert store.totals()[0] == 6000
    store.close()


def test_processes_that_start_together_share_one_new_index(tmp_path: Path) -> None:
    path = tmp_path / "fresh" / "index.sqlite"
    code = (
        "import sys; from pathlib import Path; from stitchcuda.knowledge import Searcher, open_index;"
        "print(len(Searcher(open_index(Path(sys.argv[1]))).search('coalesced access')))"
    )
    command = [sys.executable, "-c", code, str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(5)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert int(out) > 0
    store = Store(path)
    assert [source.uri for source in store.sources()] == ["notes"]
    store.close()


def test_whole_sources_can_be_left_out(store: Store) -> None:
    for uri in ("notes", "toolkit:cuda", "toolkit:cudnn", "mine"):
        add_documents(store, uri, [(f"{uri}.md", uri, "1", [prepare(Chunk((uri,), "warp words"))])])
    searcher = Searcher(store)
    assert len(searcher.search("warp")) == 4
    assert [p.title for p in searcher.search("warp", without_sources=("notes", "toolkit:*"))] == ["mine"]
