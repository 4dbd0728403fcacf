"""Takes a folder out of the sight of a process and of all that it starts, Programs at every confinement level included:
a worker's spool is hidden so, since whoever can write there can write results. Standard library only, Linux only; run
as a script it says by its exit status whether this machine allows it.

Not a way to keep a worker's own user from its files: it is about what the worker itself starts.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

NEWNS, NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000


def hide(folder: Path) -> None:
    """Cover ``folder`` by an empty one that cannot be written, for this process and its children alone; also leaves
    it as the working folder. To be called before any thread starts. Raises OSError where the machine does not allow
    it, and then the process is not to be used."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir("/")  # a working folder would still be reached from within
    if os.geteuid() == 0:
        _check(libc.unshare(NEWNS), "a mount namespace of its own")
    else:
        uid, gid = os.geteuid(), os.getegid()
        _check(libc.unshare(NEWUSER | NEWNS), "a user namespace of its own")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "private mounts")
    flags = ctypes.c_ulong(MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    covered = libc.mount(b"tmpfs", os.fsencode(folder.resolve()), b"tmpfs", flags, b"size=4k,mode=0555")
    _check(covered, f"an empty folder over {folder}")


def why_not(folder: Path) -> str:
    """Try it in a process that ends at once: what this machine does not allow, or ''."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__, str(folder)], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _check(code: int, what: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main() -> int:
    """Hide the folder that is named, and look."""
    folder = Path(sys.argv[1])
    try:
        hide(folder)
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        return 1
    return 1 if os.listdir(folder) else 0


if __name__ == "__main__":
    sys.exit(main())
