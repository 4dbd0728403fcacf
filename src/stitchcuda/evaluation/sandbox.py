"""How the runner is confined: namespaces, another user id, no new privileges, limits, a private folder, a scrubbed
environment. Started by path in a fresh interpreter; standard library only, Linux only.

Every measure is tried and, where the machine refuses it, skipped and named, so that an Evaluation can say what was
missing. This is not a jail for determined native attackers: it keeps a Program from the verdict, the network, other
processes and the disk.

Three processes: the *leash* (in the caller's PID namespace; kills everything when the caller goes), the *init* of the
new PID namespace (mounts, then reaps), and the runner proper, which loses its privileges and calls ``runner.main``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PR_SET_DUMPABLE, PR_SET_PDEATHSIG, PR_SET_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 1, 36, 38
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
SYS_MOUNT_SETATTR = 442
FIRST_UID = 61000
"""User ids 61000 to 64999 are given to runners, by the leash's process id, when the caller is root."""

LEVELS = ("full", "hidden_pids", "shared_pids", "same_user", "session")
"""From strictest to loosest, each dropping one more thing that CUDA's shared memory handles may not survive: the PID
and IPC namespaces, the hiding of other users' processes, another user id, all namespaces."""

OTHER_USER = ("full", "hidden_pids", "shared_pids")
"""Levels at which a runner of root's gets a user id of its own."""

INJECTED = ("CUDA_INJECTION", "NV_", "NVTX_INJECTION", "LD_PRELOAD", "COMPUTE_SANITIZER", "SANITIZER_")
"""What a profiling tool tells the library that it injects, by the environment."""

KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
"""What a process of root's could change the whole machine by; a /proc of one's own is writable, as CUDA needs it."""

CHANNELS = ("command_fd", "reply_fd", "arena_fd", "program_fd")
"""Descriptors that the runner proper alone keeps."""

libc = ctypes.CDLL(None, use_errno=True)


def scrubbed_environment(workdir: str, extra: dict[str, str]) -> dict[str, str]:
    """What a runner sees of the environment: the search path, CUDA and thread settings, no keys, no home."""
    kept = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "LANG", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    prefixes = ("CUDA_VISIBLE_", "CUDA_DEVICE_", "NVIDIA_", "GOMP_", "KMP_")
    environment = {k: v for k, v in os.environ.items() if k in kept or k.startswith(prefixes)}
    tools = os.path.dirname(sys.executable)
    environment["PATH"] = os.pathsep.join((environment.get("PATH", "/usr/local/bin:/usr/bin:/bin"), tools))
    environment.setdefault("LANG", "C.UTF-8")
    environment |= {"HOME": workdir, "TMPDIR": workdir, "USER": "runner", "LOGNAME": "runner"}
    environment |= {
        "TORCH_EXTENSIONS_DIR": f"{workdir}/extensions",
        "TRITON_CACHE_DIR": f"{workdir}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{workdir}/inductor",
        "CUDA_CACHE_PATH": f"{workdir}/cuda",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return environment | extra


def descendants(root: int) -> list[int]:
    """Process ids of everything that descends from ``root``, itself excluded."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fd = os.open(f"/proc/{entry}/stat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                text = os.read(fd, 1 << 12)
            except OSError:
                continue
            finally:
                os.close(fd)
            parents[int(entry)] = int(text.rpartition(b")")[2].split()[1])
    found: list[int] = []
    front = {root}
    while front:
        front = {pid for pid, parent in parents.items() if parent in front and pid not in found}
        found += front
    return found


def kill_tree(leash: int) -> None:
    """Kill a leash's descendants, those that left its process group included, then the leash itself.

    The leash reaps them as they die, so that no zombies are left to whatever init there is.
    """
    for _ in range(200):
        victims = descendants(leash)
        if not victims:
            break
        for pid in victims:
            _signal(pid)
        time.sleep(0.002)
    _signal(leash)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leash, signal.SIGKILL)


def _signal(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _unshare(flag: int, name: str, missing: list[str]) -> bool:
    if libc.unshare(flag) == 0:
        return True
    missing.append(name)
    return False


def _loopback_up() -> bool:
    """Switch on the one interface of a network namespace of its own: a profiler's processes talk over it."""
    flags_of, set_flags, up = 0x8913, 0x8914, 1
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = bytearray(struct.pack("16sH22x", b"lo", 0))
            fcntl.ioctl(any_socket, flags_of, request)
            flags = struct.unpack_from("H", request, 16)[0]
            fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", b"lo", flags | up))
    except OSError:
        return False
    return True


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> bool:
    return bool(libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()) == 0)


def _read_only(path: str) -> bool:
    """Make the mount at ``path`` and all below it read-only."""
    attributes = struct.pack("<QQQQ", 1, 0, 0, 0)
    at_cwd, recursive = -100, 0x8000
    size = ctypes.c_size_t(len(attributes))
    return bool(libc.syscall(SYS_MOUNT_SETATTR, at_cwd, path.encode(), recursive, attributes, size) == 0)


def _read_only_settings() -> bool:
    """Close the kernel's settings in a new /proc to writing: a process may stay root."""
    done = True
    for path in filter(os.path.exists, KERNEL_SETTINGS):
        bound = libc.mount(path.encode(), path.encode(), None, ctypes.c_ulong(MS_BIND | MS_REC), None) == 0
        done = bound and _read_only(path) and done
    return done


def _can_read(uid: int, paths: list[str]) -> bool:
    """Whether a user id can reach the interpreter and the libraries; asked of a child that becomes it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os._exit(0 if all(os.access(p, os.R_OK) for p in paths) else 1)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _as_exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _drop_capabilities(keep: list[int]) -> None:
    """Give all capabilities up but those by number in ``keep``, which a profiler of counters may need as root."""
    words = [0, 0]
    for number in keep:
        words[number // 32] |= 1 << (number % 32)
    header = struct.pack("<II", 0x20080522, 0)
    low, high = words
    libc.capset(header, struct.pack("<IIIIII", low, low, 0, high, high, 0))


def _load(name: str) -> Any:
    """A neighbouring file, or one by its whole path, as a module without its package."""
    path = Path(name) if name.startswith("/") else Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"stitchcuda_{path.stem}", path)
    if spec is None or spec.loader is None:
        os._exit(70)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _confine(config: dict[str, Any], uid: int | None, missing: list[str]) -> None:
    """The runner proper gives up what it does not need."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _limit(resource.RLIMIT_CORE, 0)
    limits = config["limits"]
    if not config["trusted"]:
        _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
        if uid is not None:
            _limit(resource.RLIMIT_NPROC, limits["processes"])
        if limits["address_bytes"]:
            _limit(resource.RLIMIT_AS, limits["address_bytes"])
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if not config["trusted"]:
        _drop_capabilities(config.get("capabilities", []))
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # Changing the user id hid the process from itself (/proc/self/fd), which libraries do not expect.
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        if not _load("seccomp").install(
            libc, profiling=bool(config.get("profiling")), loopback=bool(config.get("loopback"))
        ):
            missing.append("system call filter")


def _open_closed_folders(needed: list[str]) -> None:
    """Where needed paths lie in folders closed to other users (a home), cover those by empty ones that hold the needed
    paths alone, so that another user id can reach these and nothing else there."""
    closed: dict[str, list[str]] = {}
    for path in sorted({os.path.realpath(p) for p in needed}, key=len):
        for ancestor in reversed(Path(path).parents):
            if not ancestor.stat().st_mode & 0o001:
                trees = closed.setdefault(str(ancestor), [])
                if not any(path == t or path.startswith(t + "/") for t in trees):
                    trees.append(path)
                break
    for folder, trees in closed.items():
        _cover(folder, trees, "size=1m,mode=0755")


def _own_temporary_folder(needed: list[str]) -> None:
    """An empty /tmp with the needed paths in it alone: profilers keep their sessions there, whatever TMPDIR says."""
    trees = sorted({path for path in map(os.path.realpath, needed) if path.startswith("/tmp/")}, key=len)
    outer = [tree for tree in trees if not any(tree.startswith(other + "/") for other in trees)]
    _cover("/tmp", outer, "size=256m,mode=1777")


def _cover(folder: str, trees: list[str], options: str) -> None:
    """Mount an empty folder over ``folder``, in which ``trees`` are seen as they were."""
    # Descriptors reach what the empty folder is going to hide.
    held = [(tree, os.open(tree, os.O_PATH)) for tree in trees]
    covered = _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for tree, fd in held:
        if covered:
            place = f"/proc/self/fd/{fd}"
            _make_mount_point(place, tree)
            libc.mount(place.encode(), tree.encode(), None, ctypes.c_ulong(MS_BIND | MS_REC), None)
        os.close(fd)


def _make_mount_point(like: str, at: str) -> None:
    if os.path.isdir(like):
        os.makedirs(at, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(at), exist_ok=True)
        Path(at).touch()


def _settle(config: dict[str, Any], uid: int | None, mounts: bool, own_pids: bool, missing: list[str]) -> int | None:
    """Mounts, the private folder, and the user id that can be had; runs as init of the namespace, still privileged."""
    workdir = config["workdir"]
    if mounts:
        libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
        if uid is not None:
            _open_closed_folders([*config["readable"], workdir])
        if not _read_only("/"):
            missing.append("read-only file system")
        if config.get("profiling"):
            _own_temporary_folder([*config["readable"], workdir])
        if own_pids and not _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV):
            missing.append("own /proc")
        elif own_pids and os.getuid() == 0 and not _read_only_settings():
            missing.append("read-only kernel settings")
        hidden = config["level"] == "hidden_pids" and _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "hidepid=2")
        if not own_pids and not hidden:
            missing.append("hidden processes")
        size = f"size={config['limits']['disk_bytes']},mode=0755"
        if not _mount("tmpfs", workdir, "tmpfs", MS_NOSUID | MS_NODEV, size):
            missing.append("bounded folder")
        # Semaphores and shared memory of the C library and of torch are made there by whoever the runner becomes.
        _mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, size.replace("0755", "1777"))
    elif not config["trusted"]:
        missing.append("bounded folder")
    if uid is not None and not _can_read(uid, config["readable"]):
        missing.append("own user id (the interpreter's folder is closed to other users)")
        uid = None
    if uid is not None:
        for folder, _, names in os.walk(workdir):
            for path in [folder, *(f"{folder}/{name}" for name in names)]:
                os.chown(path, uid, uid)
    return uid


def _own_user_namespace(missing: list[str]) -> None:
    uid, gid = os.getuid(), os.getgid()
    if not _unshare(NEWUSER, "user namespace", missing):
        return
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError:
        missing.append("user namespace map")


def _hold(leash_fd: int, child: int) -> int:
    """Wait for the child's end, or kill everything when the caller's end of the leash closes."""
    child_fd = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([leash_fd, child_fd], [], [])
        if child_fd in ready:
            code = _as_exit_code(os.waitpid(child, 0)[1])
            _kill_children()
            return code
        # By its id here: /proc shows the ids of the child's own namespace by now. With that init, all in it die.
        _signal(child)
        _kill_children()
        os._exit(137)


def _kill_children() -> None:
    """Kill all descendants of this process and reap those that end up as its children, for two seconds at most."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        for pid in descendants(os.getpid()):
            _signal(pid)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _be_init(runner: int) -> int:
    """Reap whatever ends; return the runner's exit code when it is the runner."""
    while True:
        pid, status = os.wait()
        if pid == runner:
            return _as_exit_code(status)


def launch(config: dict[str, Any]) -> int:
    """Set the confinement up and run the runner in it; returns its exit code, 128 + signal for a signal."""
    missing: list[str] = []
    level, trusted, profiling = config["level"], config["trusted"], bool(config.get("profiling"))
    root = os.geteuid() == 0
    libc.prctl(PR_SET_SUBREAPER, 1, 0, 0, 0)
    mounts = own_pids = False
    leaves = level in OTHER_USER and not trusted and not config.get("stays_root")
    candidate = FIRST_UID + os.getpid() % 4000 if root and leaves else None
    if not trusted:
        if not root:
            missing.append("own user id (not root)")
        if level != "session":
            if not root:
                _own_user_namespace(missing)
            config["loopback"] = _unshare(NEWNET, "network namespace", missing) and profiling and _loopback_up()
            mounts = _unshare(NEWNS, "mount namespace", missing)
            if level == "full":
                _unshare(NEWIPC, "IPC namespace", missing)
                own_pids = _unshare(NEWPID, "PID namespace", missing)
        if level != "full":
            missing.append(f"confinement level {level}")
    channels = [config[name] for name in CHANNELS]
    init = os.fork()
    if init:
        for fd in channels:
            os.close(fd)
        return _hold(config["leash_fd"], init)
    os.close(config["leash_fd"])
    uid = _settle(config, candidate, mounts, own_pids, missing)
    runner = os.fork()
    if runner:
        for fd in channels:
            os.close(fd)
        os._exit(_be_init(runner))
    kept = {k: v for k, v in os.environ.items() if config.get("profiling") and k.startswith(INJECTED)}
    os.environ.clear()
    os.environ.update(config["environment"] | kept)
    _confine(config, uid, missing)
    os.chdir(config["workdir"])
    if config.get("probe"):
        print(json.dumps(missing), flush=True)
        os._exit(0)
    config["missing"] = missing
    _load(config.get("entry", "runner")).main(config)
    sys.stdout.flush()
    os._exit(0)


def probe() -> list[str]:
    """What of the confinement this machine does not allow, by trying once; empty where everything works."""
    with tempfile.TemporaryDirectory(prefix="stitchcuda-probe-") as workdir:
        os.chmod(workdir, 0o711)
        leash, held = os.pipe()
        null = [os.open(os.devnull, os.O_RDWR) for _ in CHANNELS]
        config = {
            "probe": True,
            "level": "full",
            "trusted": False,
            "workdir": workdir,
            "readable": [sys.base_prefix, sys.prefix, str(Path(__file__).parent)],
            "limits": {"file_bytes": 1 << 20, "disk_bytes": 1 << 20, "processes": 64, "address_bytes": 0},
            "environment": {},
            "leash_fd": leash,
            **dict(zip(CHANNELS, null, strict=True)),
        }
        command = [sys.executable, "-I", __file__, json.dumps(config)]
        try:
            done = subprocess.run(
                command, pass_fds=[leash, *null], capture_output=True, text=True, timeout=30, check=False
            )
        finally:
            for fd in (leash, held, *null):
                os.close(fd)
        try:
            return [str(name) for name in json.loads(done.stdout)]
        except ValueError:
            return [f"confinement ({(done.stderr.strip().splitlines() or ['no reason given'])[-1]})"]


if __name__ == "__main__":
    sys.exit(launch(json.loads(sys.argv[1])))
