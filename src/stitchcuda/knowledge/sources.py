"""Where documents come from: a file, a folder, an archive, a URL the user named. Yields names and bytes.

Nothing is unpacked to disk and no path inside an archive is followed; sizes are counted as bytes come out, never
believed from a header. Reading the bytes is in ``knowledge.reading``.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.model import Refusal
from stitchcuda.knowledge.readers import MAX_BYTES, SUFFIXES, suffix_of

MAX_FILES = 50_000
MAX_TOTAL_BYTES = 2 << 30
MAX_RATIO = 200
"""Uncompressed over compressed size of an archive member past which it is called a bomb (from 1 MiB on)."""
URL_SECONDS = 60.0

_ARCHIVES = (".zip", ".whl", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "build", "dist", "site-packages"})
_TYPES = {
    "text/html": ".html", "application/xhtml+xml": ".html", "text/markdown": ".md", "application/pdf": ".pdf",
    "text/plain": ".txt", "text/x-rst": ".rst", "application/x-ipynb+json": ".ipynb", "application/zip": ".zip",
    "application/gzip": ".tar.gz", "application/x-gzip": ".tar.gz", "application/x-tar": ".tar",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source: its name inside it (POSIX) and its bytes."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that no reader takes; counted, not reported one by one."""

    name: str


Found = SourceFile | Refusal | Skipped


def is_url(reference: str) -> bool:
    """True for what is fetched over the network."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", reference) is not None


def uri_of(reference: str) -> str:
    """The name a source goes by in the index: its URL, or its absolute path."""
    return reference if is_url(reference) else str(Path(reference).expanduser().resolve())


def open_source(reference: str) -> Iterator[Found]:
    """Files of a source, in a stable order. Raises ``KnowledgeError`` when the source as a whole cannot be used."""
    if is_url(reference):
        return _url(reference)
    path = Path(reference).expanduser()
    if path.is_dir():
        return _folder(path.resolve())
    if not path.is_file():
        raise KnowledgeError(f"{reference} is not there; give a file, a folder, an archive or a URL")
    if path.name.lower().endswith(_ARCHIVES):
        return _archive(path.name, path.open("rb"), path.stat().st_size)
    return _file(path)


def _file(path: Path) -> Iterator[Found]:
    if suffix_of(path.name) not in SUFFIXES:
        raise KnowledgeError(
            f"{path} has no suffix a reader takes; expected one of {' '.join(sorted(SUFFIXES - {''}))}"
        )
    yield _bounded(path.name, path)


def _bounded(name: str, path: Path) -> Found:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return Refusal(name, f"cannot be opened ({error.strerror})")
    if len(data) > MAX_BYTES:
        return Refusal(name, f"is larger than {MAX_BYTES >> 20} MiB")
    return SourceFile(name, data)


def _folder(root: Path) -> Iterator[Found]:
    files, total = 0, 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            if name.startswith(".") or suffix_of(name) not in SUFFIXES:
                yield Skipped(relative)
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                yield Refusal(relative, "is a link that leads out of the folder")
                continue
            if not path.is_file():
                yield Skipped(relative)
                continue
            found = _bounded(relative, path)
            files += 1
            total += len(found.data) if isinstance(found, SourceFile) else 0
            if files > MAX_FILES or total > MAX_TOTAL_BYTES:
                raise KnowledgeError(
                    f"{root} holds more than {MAX_FILES} documents or {MAX_TOTAL_BYTES >> 30} GiB; add its parts"
                )
            yield found


def _safe_member(name: str) -> str | None:
    """The member's name, or None for one that climbs out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    return path.as_posix()


def _read_member(stream: IO[bytes], name: str, compressed: int, budget: int) -> Found:
    """Bytes of one member, counted as they come; a bomb ends early."""
    data = bytearray()
    while block := stream.read(1 << 18):
        data += block
        if len(data) > min(MAX_BYTES, budget):
            return Refusal(name, f"unpacks to more than {min(MAX_BYTES, budget) >> 20} MiB")
        if compressed and len(data) > (1 << 20) and len(data) > compressed * MAX_RATIO:
            return Refusal(name, f"unpacks to more than {MAX_RATIO} times its size, as a zip bomb does")
    return SourceFile(name, bytes(data))


def _archive(name: str, stream: IO[bytes], size: int) -> Iterator[Found]:
    with stream:
        try:
            if name.lower().endswith((".zip", ".whl")):
                yield from _limited(name, _zip(stream))
            else:
                yield from _limited(name, _tar(stream, size))
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise KnowledgeError(f"{name} is a broken archive ({error}); get it again") from error
        except (NotImplementedError, RuntimeError, OSError) as error:
            raise KnowledgeError(f"{name} cannot be unpacked ({error}); unpack it and add the folder") from error


def _limited(name: str, found: Iterator[Found]) -> Iterator[Found]:
    total = 0
    for files, item in enumerate(found, 1):
        total += len(item.data) if isinstance(item, SourceFile) else 0
        if files > MAX_FILES or total > MAX_TOTAL_BYTES:
            raise KnowledgeError(
                f"{name} holds more than {MAX_FILES} files or {MAX_TOTAL_BYTES >> 30} GiB unpacked; it may be a bomb"
            )
        yield item


def _zip(stream: IO[bytes]) -> Iterator[Found]:
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if len(members) > MAX_FILES:
            raise KnowledgeError(f"the archive holds {len(members)} files; at most {MAX_FILES} are read")
        for member in sorted(members, key=lambda m: m.filename):
            if member.is_dir():
                continue
            name = _safe_member(member.filename)
            if name is None:
                yield Refusal(member.filename, "has a path that leads out of the archive")
            elif suffix_of(name) not in SUFFIXES:
                yield Skipped(name)
            elif member.flag_bits & 1:
                yield Refusal(name, "is locked with a password")
            else:
                with archive.open(member) as data:
                    yield _read_member(data, name, member.compress_size, MAX_BYTES)


class _CountingReader(io.RawIOBase):
    """The archive's own stream, with how much of it has been read: what a tar member's ratio is judged against."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.taken = stream, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.taken += len(data)
        return data


def _tar(stream: IO[bytes], size: int) -> Iterator[Found]:
    counted = _CountingReader(stream)
    unpacked = 0
    with tarfile.open(fileobj=counted, mode="r|*") as archive:
        for member in archive:
            unpacked += member.size
            if unpacked > max(64 << 20, counted.taken * MAX_RATIO):
                raise KnowledgeError(
                    f"the archive claims more than {MAX_RATIO} times its size unpacked; it may be a bomb"
                )
            if member.isdir():
                continue
            name = _safe_member(member.name)
            if name is None:
                yield Refusal(member.name, "has a path that leads out of the archive")
            elif not member.isreg() or suffix_of(name) not in SUFFIXES:
                yield Skipped(name)
            else:
                data = archive.extractfile(member)
                assert data is not None
                yield _read_member(data, name, 0, MAX_BYTES)


class _HttpOnly(urllib.request.HTTPRedirectHandler):
    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: object, newurl: str
    ) -> urllib.request.Request | None:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError(f"redirects to {newurl}, which is not http or https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _url(reference: str) -> Iterator[Found]:
    parts = urllib.parse.urlsplit(reference)
    if parts.scheme not in ("http", "https"):
        raise KnowledgeError(f"{reference} is not http or https; give a URL of these, or a path")
    if parts.username or parts.password:
        raise KnowledgeError(
            f"the URL of {parts.hostname} carries a user or password, which citations would show; "
            "download the document and add the file"
        )
    request = urllib.request.Request(reference, headers={"User-Agent": "stitchcuda-knowledge", "Accept": "*/*"})
    opener = urllib.request.build_opener(_HttpOnly())
    try:
        with opener.open(request, timeout=URL_SECONDS) as response:
            kind = response.headers.get_content_type()
            data = response.read(MAX_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise KnowledgeError(f"{reference} could not be fetched: {reason}") from error
    if len(data) > MAX_BYTES:
        raise KnowledgeError(f"{reference} is larger than {MAX_BYTES >> 20} MiB; download it and add the file")
    name = PurePosixPath(urllib.parse.unquote(parts.path)).name or "index"
    if name.lower().endswith(_ARCHIVES) or _TYPES.get(kind, "").endswith((".zip", ".tar", ".tar.gz")):
        name = name if name.lower().endswith(_ARCHIVES) else name + _TYPES[kind]
        yield from _archive(name, io.BytesIO(data), len(data))
        return
    suffix = suffix_of(name)
    declared = _TYPES.get(kind, "")
    if suffix not in SUFFIXES or not suffix or (declared == ".html" and suffix in (".txt", "")):
        if not declared:
            raise KnowledgeError(f"{reference} is {kind}, which no reader takes")
        name += declared
    yield SourceFile(name, data)
