"""Reading and naming files that others may have left in a spool: nothing but plain files of bounded size is read, and
of several that want one name the first gets it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

MOVE_SECONDS = 10.0
"""Where there are no hard links: what a process needs at most to give a written file its name, once it may."""


class BadFile(Exception):
    """Something in the spool is not what its place says; the message says why."""


def link_once(aside: Path, path: Path) -> bool:
    """Give a written file its name unless that is taken: atomic, also over NFS, where an answer may be lost."""
    try:
        os.link(aside, path)
    except FileExistsError:
        return aside.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        return _move_once(aside, path)
    return True


def _move_once(aside: Path, path: Path) -> bool:
    """The same without hard links: whoever makes the empty file beside ``path`` may fill it."""
    mark = path.with_name(f".won-{path.name}")
    while True:
        try:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            if os.path.lexists(path):  # its mark was old and removed
                return False
            os.replace(aside, path)
            return True
        if os.path.lexists(path):
            return False
        os.utime(aside)
        with contextlib.suppress(FileNotFoundError):
            if aside.stat().st_mtime - mark.stat().st_mtime > MOVE_SECONDS:
                mark.unlink()  # who made it died before it filled it, or the file was taken away since
                continue
        time.sleep(0.1)


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a plain file; BadFile for a link, a folder, a pipe, or one of more than ``most`` bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadFile("it is a symbolic link") from None
        if error.errno in (errno.ENXIO, errno.EACCES, errno.EISDIR):
            raise BadFile(f"it cannot be read: {error.strerror}") from None
        raise
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > most:
        os.close(handle)
        plain = stat.S_ISREG(facts.st_mode)
        raise BadFile(f"it has {facts.st_size:,} bytes, more than {most:,}" if plain else "it is no plain file")
    with open(handle, "rb") as file:
        return file.read(most)


def time_of(path: Path) -> float:
    """When a file was last touched. It is opened, since that makes an NFS client ask the server."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise
        raise BadFile(f"it cannot be read: {error.strerror}") from None
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)


def inside(where: str) -> bool:
    """Whether a path of an artifact stays within its folder."""
    parts = Path(where).parts
    return bool(parts) and not Path(where).is_absolute() and ".." not in parts
