"""How compilers are confined while they read a Program: no network, no GPU, no files but the Program's, the toolkit's
and the compiler's own, and limits on time, memory, file sizes and processes.

Standard library only: this file is also started by path, in a fresh interpreter, as the process that builds the
confinement and then becomes the compiler. Where the machine allows less, what is missing is named, and
``dependencies.foreign_files`` still reads from the compiler's own list which files it took in.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    32,
    4096,
    8192,
    16384,
    1 << 18,
)
SYS_MOUNT_SETATTR = 442

LEVELS = ("own_user", "same_user")
"""From strictest to loosest; below them a compiler runs unconfined."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")

SETUP_FAILED = 97
"""Exit code when the confinement could not be built; no compiler gives it."""

FIRST_UID, UIDS = 60100, 800
"""User ids that compilers get when the caller is root, by the folder that they work in."""


@dataclass(frozen=True)
class Limits:
    """What one compiler process may use: CPU seconds, bytes, and processes of its user."""

    cpu_seconds: int = 1800
    memory_bytes: int = 32 << 30
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
            "argv": argv,
            "work": str(work),
            "cwd": str(cwd),
            "roots": [*SYSTEM, *SETTINGS, *roots],
            "limits": vars(bounds),
            # All compilers that share a folder are one user.
            "uid": FIRST_UID + zlib.crc32(str(work).encode()) % UIDS if self.level == "own_user" else None,
        }
        return [sys.executable, "-I", "-S", __file__, json.dumps(config)]


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


libc = ctypes.CDLL(None, use_errno=True)


class _Refused(Exception):
    """The machine does not allow a step."""


def _must(result: int, step: str) -> None:
    if result != 0:
        raise _Refused(f"{step}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> int:
    return int(
        libc.mount(
            source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode()
        )
    )


def _read_only(root: str) -> bool:
    """Make a tree of mounts read-only; kernels before 5.12 cannot."""
    attributes = (MS_RDONLY | MS_NOSUID).to_bytes(8, sys.byteorder) + bytes(24)
    at_cwd, recursive = -100, 0x8000
    size = ctypes.c_size_t(len(attributes))
    return int(libc.syscall(SYS_MOUNT_SETATTR, at_cwd, root.encode(), recursive, attributes, size)) == 0


def _show(path: str, root: str) -> None:
    """Make ``path`` appear under the new root as it is outside: a link as a link, the rest as a mount."""
    place = root + path
    if os.path.lexists(place):
        return
    if os.path.islink(path):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(os.readlink(path), place)
        _show(os.path.realpath(path), root)
        return
    for parent in reversed(Path(path).parents):
        if parent.is_symlink():  # the path goes through a link: show the link, then what it leads to
            _show(str(parent), root)
            return _show(os.path.realpath(path), root)
    if os.path.isdir(path):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(place).touch()
    _must(_mount(path, place, None, MS_BIND | MS_REC), f"showing {path}")
    return None


def _build_root(config: dict[str, Any]) -> None:
    """A new root that holds what may be read, and the work folder to write in."""
    work = config["work"]
    _must(_mount("none", "/", None, MS_REC | MS_PRIVATE), "private mounts")
    root = f"{work}/.root"
    os.makedirs(root, exist_ok=True)  # several compilers may share the work folder, each with mounts of its own
    _must(_mount("tmpfs", root, "tmpfs", MS_NOSUID, "size=4m,mode=0755"), "an empty root")
    wanted = [path for path in config["roots"] if os.path.lexists(path)]
    # Folders before the links that lead into them, outer ones before inner ones.
    for path in sorted(set(wanted), key=lambda path: (os.path.islink(path), len(path))):
        _show(path, root)
    for path in DEVICES:
        _show(path, root)
    os.makedirs(root + work, exist_ok=True)
    os.makedirs(f"{root}/proc", exist_ok=True)
    os.makedirs(f"{root}/tmp", exist_ok=True)
    if not _read_only(root):
        for path in sorted(set(wanted)):
            _mount("none", root + path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
    _must(_mount(work, root + work, None, MS_BIND), "the work folder")
    _mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    os.chdir(root)
    _must(_mount(".", "/", None, MS_MOVE), "moving the root")
    os.chroot(".")
    os.chdir(config["cwd"])


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (bound, bound))


def _give_up(config: dict[str, Any], uid: int | None) -> None:
    """Limits, another user id, no capabilities, no way to get new ones."""
    limits = config["limits"]
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"])
    _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    if uid is not None:
        _limit(resource.RLIMIT_NPROC, limits["processes"])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (0x20080522).to_bytes(4, sys.byteorder) + bytes(4)
    libc.capset(header, bytes(24))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _own_tree(work: str, uid: int) -> None:
    for folder, _, names in os.walk(work):
        for path in [folder, *(f"{folder}/{name}" for name in names)]:
            with contextlib.suppress(FileNotFoundError):
                os.chown(path, uid, uid, follow_symlinks=False)


def _namespaces() -> None:
    if os.geteuid() != 0:
        uid, gid = os.getuid(), os.getgid()
        _must(libc.unshare(NEWUSER), "a user namespace")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for flag, name in ((NEWNET, "network"), (NEWIPC, "IPC"), (NEWNS, "mount"), (NEWPID, "PID")):
        _must(libc.unshare(flag), f"a {name} namespace")


def _enter(config: dict[str, Any]) -> int:
    """Build the confinement, run the compiler in it, and return its wait status."""
    uid: int | None = config["uid"]
    _namespaces()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    init = os.fork()
    if init:
        return os.waitpid(init, 0)[1]
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if uid is not None and os.stat(config["work"]).st_uid != uid:
            _own_tree(config["work"], uid)
        _build_root(config)
        compiler = os.fork()
        if compiler == 0:
            _give_up(config, uid)
            os.execvp(config["argv"][0], config["argv"])
        while True:  # everything that is left ends with this process, the first of its namespace
            pid, status = os.wait()
            if pid == compiler:
                os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    except (_Refused, OSError) as error:
        print(f"confinement: {error}", file=sys.stderr, flush=True)
        os._exit(SETUP_FAILED)


def main() -> int:
    """Run the compiler that the argument describes."""
    config = json.loads(sys.argv[1])
    try:
        status = _enter(config)
    except (_Refused, OSError) as error:
        print(f"confinement: {error}", file=sys.stderr)
        return SETUP_FAILED
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main())
