"""Adding, refreshing and removing sources; hostile files cost themselves alone."""

from __future__ import annotations

import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.ingest import add_source
from stitchcuda.knowledge.model import Tags
from stitchcuda.knowledge.readers import Unreadable
from stitchcuda.knowledge.reading import Reader
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.store import Store


def texts(store: Store) -> list[str]:
    return [row[0] for row in store.connection.execute("SELECT text FROM chunks ORDER BY id")]


def is_consistent(store: Store) -> bool:
    """Every table speaks of the same chunks, and the term counts are what the tokens say."""
    db = store.connection
    counted: dict[str, int] = {}
    for row in db.execute("SELECT title, symbols, body FROM passages"):
        for term in set(" ".join(row).split()):
            counted[term] = counted.get(term, 0) + 1
    stored = dict(db.execute("SELECT term, documents FROM terms WHERE documents <> 0"))
    (orphans,) = db.execute("SELECT count(*) FROM symbols WHERE chunk NOT IN (SELECT id FROM chunks)").fetchone()
    (rows,) = db.execute("SELECT count(*) FROM passages").fetchone()
    return stored == counted and orphans == 0 and rows == store.totals()[0]


def test_adding_again_changes_nothing(store: Store, documents: Path) -> None:
    (documents / "a.md").write_text("# A\n\nswizzled tiles\n")
    (documents / "notes").mkdir()
    (documents / "notes" / "b.txt").write_text("bank conflicts\n")
    (documents / "image.png").write_bytes(b"\x89PNG\0")
    first = add_source(store, str(documents))
    before = texts(store)
    second = add_source(store, str(documents))
    assert (first.added, first.chunks, first.skipped) == (2, 2, 1)
    assert (second.added, second.replaced, second.unchanged, second.chunks) == (0, 0, 2, 0)
    assert texts(store) == before
    assert is_consistent(store)


def test_a_changed_document_replaces_its_passages_and_a_vanished_one_takes_them_along(
    store: Store, documents: Path
) -> None:
    (documents / "a.md").write_text("# A\n\nold words\n")
    (documents / "b.md").write_text("# B\n\nother words\n")
    add_source(store, str(documents))
    (documents / "a.md").write_text("# A\n\nnew words\n")
    (documents / "b.md").unlink()
    report = add_source(store, str(documents))
    assert (report.replaced, report.removed) == (1, 1)
    assert texts(store) == ["new words"]
    assert not Searcher(store).search("old")
    assert is_consistent(store)


def test_new_tags_are_a_change(store: Store, documents: Path) -> None:
    (documents / "a.md").write_text("# A\n\nwords of wisdom\n")
    add_source(store, str(documents))
    assert add_source(store, str(documents), tags=Tags(("sm_90",), ("cutlass",))).replaced == 1
    (passage,) = Searcher(store).search("wisdom")
    assert (passage.arch, passage.libraries) == (("sm_90",), ("cutlass",))


def test_remove_takes_a_source_out_whole(store: Store, documents: Path) -> None:
    (documents / "a.h").write_text("/** Does it. */\nint demoDoIt(int x);\n")
    uri = add_source(store, str(documents)).uri
    assert [s.uri for s in store.sources()] == [uri]
    assert store.remove_source(uri) == 1
    assert (store.sources(), texts(store)) == ([], [])
    assert is_consistent(store)
    with pytest.raises(KnowledgeError, match="no source"):
        store.remove_source(uri)


def test_archives_are_read_without_unpacking(store: Store, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "docs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("docs/a.md", "# A\n\ninside a zip\n")
        archive.writestr("docs/x.bin", b"\0")
    with tarfile.open(tmp_path / "docs.tar.gz", "w:gz") as tar:
        data = b"# B\n\ninside a tar\n"
        info = tarfile.TarInfo("docs/b.md")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    assert add_source(store, str(tmp_path / "docs.zip")).added == 1
    assert add_source(store, str(tmp_path / "docs.tar.gz")).added == 1
    assert texts(store) == ["inside a zip", "inside a tar"]


def test_a_zip_bomb_is_refused_and_its_neighbours_are_read(store: Store, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("a.md", "# A\n\ngood words\n")
        archive.writestr("bomb.md", b"a" * (20 << 20))
    report = add_source(store, str(tmp_path / "bomb.zip"))
    assert report.added == 1
    assert [(r.name, "zip bomb" in r.reason) for r in report.refused] == [("bomb.md", True)]


def test_a_tar_bomb_is_refused(store: Store, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("bomb.bin")
        info.size = 100 << 20
        tar.addfile(info, _Zeros(info.size))  # type: ignore[arg-type]
        tar.addfile(tarfile.TarInfo("a.md"))
    with pytest.raises(KnowledgeError, match="bomb"):
        add_source(store, str(tmp_path / "bomb.tar.gz"))
    assert store.sources() == []


class _Zeros:
    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def test_members_that_climb_out_of_an_archive_are_refused(store: Store, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../../outside.md", "# X\n\nout\n")
        archive.writestr("/absolute.md", "# X\n\nout\n")
        archive.writestr("fine.md", "# Y\n\nin\n")
    report = add_source(store, str(tmp_path / "evil.zip"))
    assert sorted(r.name for r in report.refused) == ["../../outside.md", "/absolute.md"]
    assert texts(store) == ["in"]


@pytest.mark.parametrize("name", ["broken.zip", "broken.tar.gz", "broken.tar.xz", "broken.tar"])
def test_a_broken_archive_is_refused_and_leaves_nothing(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 nothing of the kind" * 40)
    with pytest.raises(KnowledgeError, match=r"broken archive|cannot be unpacked"):
        add_source(store, str(tmp_path / name))
    assert store.sources() == []


def test_hostile_files_in_a_folder_are_named_with_reasons(store: Store, documents: Path) -> None:
    (documents / "binary.md").write_bytes(b"\x7fELF\0\0\0")
    (documents / "broken.pdf").write_bytes(b"%PDF-1.7\nbroken")
    (documents / "deep.html").write_text("<div>" * 200_000)
    (documents / "good.md").write_text("# Good\n\nwords\n")
    report = add_source(store, str(documents))
    assert report.added == 1
    assert {r.name for r in report.refused} == {"binary.md", "broken.pdf", "deep.html"}
    assert all(len(r.reason) > 10 for r in report.refused)


def test_a_link_out_of_the_folder_is_not_followed(store: Store, documents: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("# S\n\nsecret\n")
    (documents / "link.md").symlink_to(tmp_path / "secret.md")
    report = add_source(store, str(documents))
    assert [r.name for r in report.refused] == ["link.md"]
    assert texts(store) == []


def test_a_file_that_takes_too_long_is_refused_and_the_next_is_read() -> None:
    slow = ("*a **b " * 400_000).encode()
    with Reader(seconds_per_file=4.0) as reader:
        with pytest.raises(Unreadable, match="took longer"):
            reader.read("slow.md", slow)
        assert reader.read("next.md", b"# N\n\nwords\n").title == "N"


def test_a_file_that_eats_the_memory_is_refused_and_the_next_is_read() -> None:
    with Reader(memory_bytes=160 << 20) as reader:
        with pytest.raises(Unreadable, match=r"exhausts|out of memory"):
            reader.read("big.md", b"- a\n" * 4_000_000)
        assert reader.read("next.md", b"# N\n\nwords\n").title == "N"


def test_what_is_not_there_or_of_no_known_kind_is_wrong_use(store: Store, documents: Path) -> None:
    with pytest.raises(KnowledgeError, match="not there"):
        add_source(store, str(documents / "nothing"))
    (documents / "a.exe").write_bytes(b"x")
    with pytest.raises(KnowledgeError, match="suffix"):
        add_source(store, str(documents / "a.exe"))
    for url in ("ftp://localhost/x.md", "file:///etc/passwd"):
        with pytest.raises(KnowledgeError, match="not http"):
            add_source(store, url)


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            return
        self.send_response(200 if self.path.startswith("/guide") else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"<html><title>Guide</title><h1>Guide</h1><p>Served words.</p></html>")

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    httpd.server_close()


def test_a_url_that_the_user_names_is_read(store: Store, server: str) -> None:
    report = add_source(store, f"{server}/guide", version="13.0")
    (passage,) = Searcher(store).search("served words")
    assert report.added == 1
    assert passage.source.startswith(f"{server}/guide")
    assert passage.version == "13.0"


def test_a_url_that_fails_or_leads_to_a_file_is_refused(store: Store, server: str) -> None:
    with pytest.raises(KnowledgeError, match="could not be fetched"):
        add_source(store, f"{server}/missing")
    with pytest.raises(KnowledgeError, match=r"not allowed|not http"):
        add_source(store, f"{server}/moved")
    assert store.sources() == []


def test_a_url_with_a_password_is_refused_and_the_password_not_repeated(store: Store) -> None:
    with pytest.raises(KnowledgeError, match="carries a user or password") as refused:
        add_source(store, "https://me:hidden@example.invalid/a.html")
    assert "hidden" not in str(refused.value)
    assert store.sources() == []
