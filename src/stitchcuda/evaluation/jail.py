"""How compilers are confined while they read a Program: no network, no GPU, no files but the Program's, the toolkit's
and the compiler's own, and limits on time, memory, file sizes and processes.

This chooses what the machine allows and writes the command line; ``jail_entry`` builds the confinement. Where the
machine allows less, what is missing is named, and ``dependencies.foreign_files`` still reads from the compiler's own
list which files it took in.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

LEVELS = ("own_user", "same_user")
"""From strictest to loosest; below them a compiler runs unconfined."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")

ENTRY = str(Path(__file__).with_name("jail_entry.py"))

FIRST_UID, UIDS = 60100, 800
"""User ids that compilers get when the caller is root, by the folder that they work in."""


def _memory() -> int:
    """Three quarters of the machine's memory, at least 6 GiB of addresses, which large sources need."""
    return max(6 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4)


@dataclass(frozen=True)
class Limits:
    """What one compiler process may use: CPU seconds, bytes of addresses and of a file, and processes of its user."""

    cpu_seconds: int = 1800
    memory_bytes: int = field(default_factory=_memory)
    file_bytes: int = 2 << 30
    processes: int = 512


@dataclass(frozen=True)
class Jail:
    """A way to confine that this machine allows. ``level`` is "" where there is none."""

    level: str
    missing: tuple[str, ...]

    def describe(self) -> str:
        """``full``, or what is missing, for people."""
        return "full" if not self.missing else "without " + ", ".join(self.missing)

    def command(
        self, argv: list[str], *, work: Path, cwd: Path, roots: tuple[str, ...], limits: Limits | None = None
    ) -> list[str]:
        """The command line that runs ``argv`` in ``cwd``, with ``work`` writable and ``roots`` readable beside the
        system's own folders."""
        bounds = limits or Limits()
        if not self.level:
            return argv
        config = {
            "level": self.level,
            "argv": [shutil.which(argv[0]) or argv[0], *argv[1:]],
            "work": str(work),
            "cwd": str(cwd),
            "roots": [*SYSTEM, *SETTINGS, *roots],
            "limits": vars(bounds),
            # All compilers that share a folder are one user.
            "uid": FIRST_UID + zlib.crc32(str(work).encode()) % UIDS if self.level == "own_user" else None,
        }
        return [sys.executable, "-I", "-S", ENTRY, json.dumps(config)]


@functools.cache
def jail() -> Jail:
    """The strictest confinement that works here, by trying once in a process."""
    missing: list[str] = []
    for level in LEVELS:
        if level == "own_user" and os.geteuid() != 0:
            missing.append("a user of its own (not root)")
            continue
        with tempfile.TemporaryDirectory(prefix="stitchcuda-jail-") as name:
            work = Path(name).resolve()
            attempt = Jail(level, ())
            command = attempt.command(["/bin/sh", "-c", "echo x > made"], work=work, cwd=work, roots=())
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            except (OSError, subprocess.SubprocessError) as error:
                missing.append(f"{level}: {error}")
                continue
            if done.returncode == 0 and (work / "made").is_file():
                return Jail(level, tuple(missing))
            missing.append(f"{level}: {(done.stderr.strip().splitlines() or ['refused'])[-1]}")
    return Jail("", (*missing, "confinement of compilers"))
