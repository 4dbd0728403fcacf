"""Builds the confinement that ``jail`` describes, and runs a compiler in it.

Started by path in a fresh interpreter for every compiler, so it imports as little as it can: the standard library only.
Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
SYS_MOUNT_SETATTR = 442

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")

SETUP_FAILED = 97
"""Exit code when the confinement could not be built; no compiler gives it."""

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
    parts = path.strip("/").split("/")
    for count in range(1, len(parts)):
        parent = "/" + "/".join(parts[:count])
        if os.path.islink(parent):  # the path goes through a link: show the link, then what it leads to
            _show(parent, root)
            _show(os.path.realpath(path), root)
            return
    if os.path.isdir(path):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    _must(_mount(path, place, None, MS_BIND | MS_REC), f"showing {path}")


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
    try:  # noqa: SIM105 (contextlib would double the start-up)
        resource.setrlimit(kind, (bound, bound))
    except (ValueError, OSError):
        pass


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
            try:  # noqa: SIM105
                os.chown(path, uid, uid, follow_symlinks=False)
            except FileNotFoundError:  # another compiler's temporary file
                pass


def _namespaces() -> None:
    if os.geteuid() != 0:
        uid, gid = os.getuid(), os.getgid()
        _must(libc.unshare(NEWUSER), "a user namespace")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
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
            os.execv(config["argv"][0], config["argv"])
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
