"""Durable files: whole or absent, and a full disk is one clear error. Knows nothing of what the files mean."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from stitchcuda.errors import InfrastructureError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def full_disk_is_an_error(folder: Path) -> Iterator[None]:
    """Turn "no space left" into an InfrastructureError that names the run and how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InfrastructureError(
            f"The disk is full (while writing {error.filename or folder}). Nothing that was paid for is lost: "
            f"free some space, then go on with `stitchcuda runs resume {folder}`."
        ) from error


def sync_folder(folder: Path) -> None:
    """Make renames and new names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes) -> None:
    """Write ``path`` so that a reader, or a machine that dies, sees the old contents or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _aside(path, "part")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _aside(path: Path, what: str) -> Path:
    """A name beside ``path`` that only this thread uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.{what}")


def place_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Build a folder with ``fill(temporary)``, then put it in place whole; an older one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _aside(path, "part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        fill(temporary)
        if path.exists():
            old = _aside(path, "old")
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written in ``folder`` (its ``.part`` and ``.old`` names)."""
    for entry in folder.iterdir():
        if entry.name.startswith(".") and entry.suffix in (".part", ".old"):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
