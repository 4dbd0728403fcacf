"""A filter of system calls for the process that runs a Program, as a BPF program made here and installed through prctl.
Standard library only, Linux on x86-64 and aarch64; ``sandbox`` loads it by path.

It denies what no kernel needs and what reaches out of the process. What has no use but an attack ends the process, so
that the supervisor sees why; what an honest library may try is refused with an error. CUDA needs clone and ioctl, and
compilers need execve: those stay. It is one wall of several: whoever is in the process can do anything to the process.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from typing import Any

PR_SET_SECCOMP, MODE_FILTER = 22, 2
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
X32_BIT = 0x40000000
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* flags: mount, cgroup, UTS, IPC, user, PID, network."""

FAMILIES = (1, 16)
"""AF_UNIX and AF_NETLINK; every other family of sockets is refused."""

INTERNET = (2, 10)
"""AF_INET and AF_INET6, over which a profiler's own processes talk; only where there is no network but loopback."""

NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "chroot": 161,
        "bpf": 321,
        "kexec_load": 246,
        "kexec_file_load": 320,
        "init_module": 175,
        "finit_module": 313,
        "delete_module": 176,
        "setns": 308,
        "unshare": 272,
        "reboot": 169,
        "swapon": 167,
        "swapoff": 168,
        "open_by_handle_at": 304,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "keyctl": 250,
        "add_key": 248,
        "request_key": 249,
        "personality": 135,
        "kcmp": 312,
        "quotactl": 179,
        "acct": 163,
        "settimeofday": 164,
        "clock_settime": 227,
        "clock_adjtime": 305,
        "socket": 41,
        "clone": 56,
    },
    "aarch64": {
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "chroot": 51,
        "bpf": 280,
        "kexec_load": 104,
        "kexec_file_load": 294,
        "init_module": 105,
        "finit_module": 273,
        "delete_module": 106,
        "setns": 268,
        "unshare": 97,
        "reboot": 142,
        "swapon": 224,
        "swapoff": 225,
        "open_by_handle_at": 265,
        "perf_event_open": 241,
        "userfaultfd": 282,
        "keyctl": 219,
        "add_key": 217,
        "request_key": 218,
        "personality": 92,
        "kcmp": 272,
        "quotactl": 60,
        "acct": 89,
        "settimeofday": 170,
        "clock_settime": 112,
        "clock_adjtime": 266,
        "socket": 198,
        "clone": 220,
    },
}
COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
}
"""Numbers that all architectures share."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

KILLED = (
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "mount",
    "umount2",
    "pivot_root",
    "bpf",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "setns",
    "unshare",
    "reboot",
    "swapon",
    "swapoff",
    "open_by_handle_at",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsmount",
    "mount_setattr",
)
"""No honest library asks for these: other processes' memory, mounts, namespaces, kernel code."""

REFUSED = (
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "add_key",
    "request_key",
    "personality",
    "kcmp",
    "chroot",
    "quotactl",
    "acct",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "pidfd_getfd",
    "process_madvise",
)
PROFILERS = ("ptrace", "process_vm_readv", "perf_event_open")
"""What a profiler or sanitizer may need; never open while a clock counts."""


def _step(code: int, value: int, hit: int = 0, miss: int = 0) -> bytes:
    return struct.pack("<HBBI", code, hit, miss, value)


def rules(machine: str, *, profiling: bool = False, loopback: bool = False) -> bytes:
    """The BPF program for an architecture as ``platform.machine`` names it; KeyError for one without a table."""
    families = FAMILIES + INTERNET if loopback else FAMILIES
    numbers = NUMBERS[machine] | COMMON
    open_ones = PROFILERS if profiling else ()
    code = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(JUMP_EQUAL, ARCHITECTURES[machine], 1, 0),
        _step(RETURN, KILL_PROCESS),
        _step(LOAD, NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [_step(JUMP_AT_LEAST, X32_BIT, 0, 1), _step(RETURN, ERRNO | ENOSYS)]
    for names, verdict in ((KILLED, KILL_PROCESS), (REFUSED, ERRNO | EPERM)):
        for name in names:
            if name not in open_ones:
                code += [_step(JUMP_EQUAL, numbers[name], 0, 1), _step(RETURN, verdict)]
    # The flags of clone3 lie in memory, which a filter cannot read; without it the C library falls back to clone.
    code += [_step(JUMP_EQUAL, numbers["clone3"], 0, 1), _step(RETURN, ERRNO | ENOSYS)]
    code += [
        _step(JUMP_EQUAL, numbers["clone"], 0, 4),
        _step(LOAD, FIRST_ARGUMENT_AT),
        _step(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1),
        _step(RETURN, KILL_PROCESS),
        _step(RETURN, ALLOW),
    ]
    code += [_step(JUMP_EQUAL, numbers["socket"], 0, 2 + len(families)), _step(LOAD, FIRST_ARGUMENT_AT)]
    code += [_step(JUMP_EQUAL, family, len(families) - at, 0) for at, family in enumerate(families)]
    code += [_step(RETURN, ERRNO | EAFNOSUPPORT), _step(RETURN, ALLOW)]
    return b"".join(code)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def install(libc: Any, *, profiling: bool = False, loopback: bool = False) -> bool:
    """Filter this process's calls from now on, and its children's; for ever. False where the machine refuses. Needs
    no_new_privs or root."""
    try:
        code = rules(platform.machine(), profiling=profiling, loopback=loopback)
    except KeyError:
        return False
    program = _Program(len(code) // 8, code)
    return bool(libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0) == 0)
