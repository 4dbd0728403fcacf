"""A folder of built things by content hash, which many processes read and write at once: bounded in size, and whole
whoever is killed. What is built, and under which key, is in ``build`` and ``library``.

Entries are folders that are written aside, sealed with a hash of all their files, and renamed into place. An entry
whose files no longer match its seal is not there. The least recently used ones go when the cache is full, but none that
a living process has asked for lately: it holds a lease, which the system takes back when the process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

Kind = Literal["programs", "libraries", "kernels"]

KINDS: tuple[Kind, ...] = ("programs", "libraries", "kernels")

LIMIT_VARIABLE = "STITCHCUDA_BUILD_CACHE_BYTES"
DEFAULT_LIMIT = 8 << 30
"""Bytes of all entries, unless the variable says otherwise."""

LEASES = 256
"""Entries, the latest used, that one process keeps from being removed."""

LEFT_AFTER_S = 3600.0
"""What a builder left in the scratch folder is removed after so long, seconds."""

POLL_S = 0.02
"""Between looks at whether another process has finished the same build, seconds."""

SEAL = ".seal"

_leases: OrderedDict[str, int] = OrderedDict()
_guard = threading.Lock()
_written: dict[str, int] = {}
"""Bytes written to a cache by this process since its size was last looked at."""


class BuildCache:
    """The cache under one folder; cheap to make, and safe in any number of threads and processes."""

    def __init__(self, root: Path, limit_bytes: int | None = None) -> None:
        self.root = root
        self.scratch = root / "scratch"
        self.limit = limit_bytes if limit_bytes is not None else _limit()

    def find(self, kind: Kind, key: str) -> Path | None:
        """The entry's folder, which stays while this process lives (see LEASES); None where there is none, or where a
        file of it has changed since."""
        folder = self.root / kind / key
        if not folder.is_dir():
            return None
        self._lease(kind, key)
        return folder if _intact(folder) else None

    @contextlib.contextmanager
    def aside(self, prefix: str) -> Iterator[Path]:
        """A new folder to write an entry into, gone afterwards unless it was published. What builders that were killed
        have left there long ago is removed."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._sweep()
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=self.scratch)).resolve()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, kind: Kind, key: str, aside: Path) -> Path:
        """Move a finished folder to its place, whoever else does the same; its folder in the cache. OSError."""
        folder = self.root / kind / key
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._lease(kind, key)
        aside.chmod(0o755)  # readers may have another user id
        (aside / SEAL).write_text(_fingerprint(aside), encoding="ascii")
        size = _size(aside)
        if folder.exists():
            if _intact(folder):
                return folder
            with contextlib.suppress(OSError):
                folder.rename(Path(tempfile.mkdtemp(prefix="broken-", dir=aside.parent)) / folder.name)
        try:
            aside.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not _intact(folder):
                raise
        self._count(size)
        return folder

    @contextlib.contextmanager
    def making(self, key: str, deadline: float, done: Callable[[], bool]) -> Iterator[None]:
        """Be the only process that builds ``key``, or wait until another has: until ``done`` or the deadline, in
        time.monotonic() seconds. Nobody is kept from building by one that hangs or was killed."""
        path = self._lock_path(f"making-{key}")
        held = None
        while held is None and not done() and time.monotonic() < deadline:
            held = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if held is None:
                time.sleep(POLL_S)
        try:
            yield
        finally:
            if held is not None:
                path.unlink(missing_ok=True)
                os.close(held)

    def trim(self, limit_bytes: int | None = None) -> int:
        """Remove the entries that were not used for longest until all fit into the limit; bytes removed. Entries with
        a lease stay, so that more than the limit may be left."""
        limit = self.limit if limit_bytes is None else limit_bytes
        guard = _lock(self._lock_path("trim"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if guard is None:
            return 0
        try:
            entries = [(self._used(kind, path), _size(path), kind, path) for kind in KINDS for path in self._all(kind)]
            total = sum(size for _, size, _, _ in entries)
            removed = 0
            for _, size, kind, path in sorted(entries, key=lambda entry: entry[0]):
                if total - removed <= limit:
                    break
                if self._remove(kind, path):
                    removed += size
            return removed
        finally:
            os.close(guard)

    def _all(self, kind: Kind) -> list[Path]:
        try:
            return list((self.root / kind).iterdir())
        except FileNotFoundError:
            return []

    def _used(self, kind: Kind, path: Path) -> float:
        for place in (self._lock_path(f"{kind}-{path.name}"), path):
            with contextlib.suppress(OSError):
                return place.stat().st_mtime
        return 0.0

    def _remove(self, kind: Kind, path: Path) -> bool:
        lock = self._lock_path(f"{kind}-{path.name}")
        held = _lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if held is None:
            return False
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
            grave = Path(tempfile.mkdtemp(prefix="old-", dir=self.scratch))
            try:
                path.rename(grave / path.name)
            except OSError:
                return False
            finally:
                shutil.rmtree(grave, ignore_errors=True)
            lock.unlink(missing_ok=True)
            return True
        finally:
            os.close(held)

    def _lease(self, kind: Kind, key: str) -> None:
        """Keep an entry from being removed, and note that it is used now."""
        try:
            path = self._lock_path(f"{kind}-{key}")
        except OSError:
            return
        name = str(path)
        with _guard:
            fd = _leases.pop(name, None)
            if fd is not None and not _same(fd, path):
                os.close(fd)
                fd = None
            if fd is None:
                with contextlib.suppress(OSError):
                    fd = _lock(path, fcntl.LOCK_SH)
            if fd is None:
                return  # locks are not to be had here: recently used entries are the last to go
            _leases[name] = fd
            with contextlib.suppress(OSError):
                os.utime(fd)
            while len(_leases) > LEASES:
                os.close(_leases.popitem(last=False)[1])

    def _lock_path(self, name: str) -> Path:
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _count(self, size: int) -> None:
        """Look at the cache's size after the first entry of a process, and then after each twentieth of the limit."""
        name = str(self.root)
        with _guard:
            first = name not in _written
            _written[name] = _written.get(name, 0) + size
            if not first and _written[name] < self.limit // 20:
                return
            _written[name] = 0
        with contextlib.suppress(OSError):
            self.trim()

    def _sweep(self) -> None:
        limit = time.time() - LEFT_AFTER_S
        for path in self.scratch.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < limit:
                    shutil.rmtree(path, ignore_errors=True)


def release_leases() -> None:
    """Let go of everything that this process has kept from being removed."""
    with _guard:
        while _leases:
            os.close(_leases.popitem()[1])


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _limit() -> int:
    given = os.environ.get(LIMIT_VARIABLE, "").strip()
    return int(given) if given.isdigit() else DEFAULT_LIMIT


def _lock(path: Path, how: int) -> int | None:
    """A descriptor that holds the lock of a file, made if need be; None where that is not to be had."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, how)
        except OSError:
            os.close(fd)
            return None
        if _same(fd, path):
            return fd
        os.close(fd)  # removed meanwhile by whoever held it


def _same(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except OSError:
        return False
    ours = os.fstat(fd)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _intact(folder: Path) -> bool:
    """Whether an entry still holds what was put there: a crash or a Program may have changed it."""
    try:
        return (folder / SEAL).read_text(encoding="ascii") == _fingerprint(folder)
    except (OSError, UnicodeDecodeError):
        return False


def _fingerprint(folder: Path) -> str:
    h = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and "__pycache__" not in relative.parts and path.name != SEAL:
            h.update(f"{relative}\0{file_digest(path)}\0".encode())
    return h.hexdigest()


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    total = 0
    with contextlib.suppress(OSError):
        for each in path.rglob("*") if path.is_dir() else [path]:
            with contextlib.suppress(OSError):
                total += each.lstat().st_size
    return total
