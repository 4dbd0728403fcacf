"""Starts processes that need torch in milliseconds: one process imports it, and others are forked from that instead of
importing it anew. It never runs a Program or a Task, holds no secret and reads nobody's settings: those go from the
parent straight to the fork. It never opens a GPU's driver, which does not survive a fork: each fork opens it itself.

The parent's end is ``start_confined`` and ``start_module``, each with a process of its own to fork from; the rest is
that process itself, which needs torch and the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import site
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

Role = Literal["confined", "trusted"]
"""What a nursery's forks are: Programs and stock options behind ``evaluation.sandbox``, or modules of this package."""

STDOUT = "stdout"
"""Name of the descriptor that becomes a fork's standard output and error."""
CONFIG = "config"
"""Name of the descriptor that a fork reads its settings from."""
CHANNEL = "channel"
"""Name of the descriptor of a trusted fork's own channel."""
PR_SET_PDEATHSIG = 1
START_SECONDS = 120.0
"""Longest time to wait for torch to be imported, or for an answer."""
KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
KEPT_PREFIXES = ("GOMP_", "KMP_", "MALLOC_", "GLIBC_")
"""Of the environment, what libraries read when they are loaded; the rest reaches a fork with its settings."""
KEPT_BY_TRUSTED = (*KEPT_PREFIXES, "TORCH_", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "MKL_")
"""What a Program's environment is scrubbed of, and the reference's is not."""
FORKS_CUDA = "STITCHCUDA_FORK_CUDA"
"""Set to 0, processes that use a GPU import torch themselves, each a few seconds later than a fork has it."""
PRELOADED = ("stitchcuda.evaluation.oracle", "stitchcuda.task.probe")
"""Modules that trusted forks are most likely to run."""
NEEDED: dict[Role, tuple[str, ...]] = {"confined": ("torch",), "trusted": ("torch", "pydantic")}
"""Packages that are imported before anything is forked."""


class Process(Protocol):
    """What a supervisor needs of a runner's process, however it was started."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Exit code once it has ended; subprocess.TimeoutExpired when ``timeout`` seconds were not enough."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


class Forked:
    """A process that the nursery forked; its id stays taken until its end was asked for here."""

    def __init__(self, nursery: Nursery, pid: int, gone: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery, self._gone = nursery, gone
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """See ``Process``."""
        with self._lock:
            if self.returncode is None and select.select([self._gone], [], [], 0)[0]:
                self._reap()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See ``Process``."""
        if self.returncode is None and not select.select([self._gone], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"runner {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        """See ``Process``."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        try:
            self.returncode = int(self._nursery.ask({"reap": self.pid})[0]["code"])
        except (OSError, ValueError):
            self.returncode = -signal.SIGKILL
        os.close(self._gone)


class Nursery:
    """The supervisor's end of one nursery process, which ends with the supervisor."""

    def __init__(self, role: Role, environment: Mapping[str, str]) -> None:
        needed = {name: importlib.util.find_spec(name) for name in NEEDED[role]}
        missing = [name for name, found in needed.items() if found is None or found.origin is None]
        if missing:
            raise FileNotFoundError(f"{', '.join(missing)} not installed in this Python")
        # They may lie where this process finds them by PYTHONPATH, or among the user's own packages.
        folders = {str(Path(found.origin).parents[1]) for found in needed.values() if found and found.origin}
        self.owner = os.getpid()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(START_SECONDS)
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__, role, str(theirs.fileno()), *sorted(folders)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Importing torch must not open the driver, which a fork could not use then.
            env=dict(environment) | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
            start_new_session=True,
            cwd="/",
        )
        theirs.close()

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """One request and its answer, with descriptors either way; OSError when the process is gone."""
        with self.lock:
            socket.send_fds(self.channel, [json.dumps(request).encode()], list(fds))
            data, received, _, _ = socket.recv_fds(self.channel, 1 << 12, 1)
        if not data:
            raise ConnectionResetError("the nursery has ended")
        answer = json.loads(data)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer, list(received)

    def start(self, config: dict[str, Any], fds: Mapping[str, int]) -> Forked:
        """Fork one for ``config``; ``fds`` are given to it by name."""
        memory = os.memfd_create("config", os.MFD_CLOEXEC)
        try:
            os.write(memory, json.dumps(config).encode())
            os.lseek(memory, 0, os.SEEK_SET)
            named = {**fds, CONFIG: memory}
            answer, (gone,) = self.ask({"names": list(named)}, list(named.values()))
        finally:
            os.close(memory)
        return Forked(self, int(answer["pid"]), gone)

    def usable(self) -> bool:
        """Whether it runs and belongs to this very process, not to one that this one was forked from."""
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        """End it; what it started goes on."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


_nurseries: dict[tuple[Role, frozenset[tuple[str, str]], frozenset[int]], Nursery] = {}
_guard = threading.Lock()


def nursery(role: Role) -> Nursery:
    """This process's nursery for a role, and for the environment and the cores as they are now, started where there is
    none: torch counts its threads when it is loaded.

    Raises OSError when no process can be started.
    """
    prefixes = KEPT_BY_TRUSTED if role == "trusted" else KEPT_PREFIXES
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(prefixes)}
    if role == "trusted":
        # These mostly wait while a confined one is timed: spinning threads would take its cores.
        kept["OMP_WAIT_POLICY"] = "passive"
    key = role, frozenset(kept.items()), frozenset(os.sched_getaffinity(0))
    with _guard:
        if not _nurseries:
            atexit.register(_close_all)
        found = _nurseries.get(key)
        if found is None or not found.usable():
            found = _nurseries[key] = Nursery(role, kept)
        return found


def forks(kind: str) -> bool:
    """Whether processes for a kind of device are forked here."""
    return kind == "cpu" or os.environ.get(FORKS_CUDA) != "0"


def expect() -> None:
    """Start both nurseries now, side by side, since they are going to be needed."""
    with contextlib.suppress(OSError):
        nursery("trusted")
        nursery("confined")


def _close_all() -> None:
    for found in _nurseries.values():
        if found.owner == os.getpid():
            found.close()


def start_confined(config: dict[str, Any], fds: Mapping[str, int]) -> Forked | None:
    """``evaluation.sandbox.launch(config)`` in a fork, where ``fds`` are entered by the numbers they get there; its
    output goes to ``fds[STDOUT]``. None where that is not possible, and the caller is to start an interpreter."""
    try:
        return nursery("confined").start(config, fds)
    except (OSError, ValueError):
        return None


def start_module(
    module: str,
    arguments: Sequence[str],
    *,
    output: int,
    channel: int | None = None,
    environment: Mapping[str, str] | None = None,
    limits: Mapping[int, int] | None = None,
    from_here: bool = False,
) -> Forked | None:
    """``python -m MODULE ARGUMENTS`` in a fork, which ends with this process; None where that is not possible.

    ``module`` is one of this package. A ``channel`` is a socket that it gets as its last argument, by its number there;
    ``limits`` are resource limits; ``from_here`` makes the current folder importable. With the user's own search path,
    folder and environment (this process's where none is given).
    """
    environment = os.environ if environment is None else environment
    searched = environment.get("PYTHONPATH", "").split(os.pathsep)
    config = {
        "module": module,
        "arguments": list(arguments),
        "environment": dict(environment),
        "search_path": [path for path in ([os.getcwd()] if from_here else []) + searched if path],
        "user_site": [site.getusersitepackages()] if site.ENABLE_USER_SITE else [],
        "folder": os.getcwd(),
        "limits": list((limits or {}).items()),
    }
    try:
        fds = {STDOUT: output} | ({} if channel is None else {CHANNEL: channel})
        return nursery("trusted").start(config, fds)
    except (OSError, ValueError):
        return None


# ---- The process itself ----


def _confined(config: dict[str, Any], fds: dict[str, int]) -> int:
    for fd in fds.values():
        os.set_inheritable(fd, True)
    return int(sys.modules["stitchcuda_sandbox"].launch(config | fds))


def _trusted(config: dict[str, Any], fds: dict[str, int]) -> int:
    # With this process's parent, which ends when the one that asked does.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.environ.clear()
    os.environ.update(config["environment"])
    os.chdir(config["folder"])
    sys.dont_write_bytecode = True
    sys.path[:] = [*config["search_path"], *sys.path, *config["user_site"]]
    sys.argv = [config["module"], *config["arguments"], *(str(fd) for fd in fds.values())]
    for kind, value in config["limits"]:
        resource.setrlimit(kind, (value, value))
    importlib.import_module(config["module"]).main()
    return 0


def _child(role: Role, names: Sequence[str], received: Sequence[int]) -> int:
    os.setsid()
    fds = dict(zip(names, received, strict=True))
    output = fds.pop(STDOUT)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    with os.fdopen(fds.pop(CONFIG), "rb") as file:
        config = json.load(file)
    return _confined(config, fds) if role == "confined" else _trusted(config, fds)


def _serve(role: Role, channel: socket.socket) -> None:
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 1 << 12, 16)
        if not data:
            return
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            channel.sendall(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
            continue
        try:
            pid = os.fork()
        except OSError as error:
            channel.sendall(json.dumps({"error": str(error)}).encode())
            pid = -1
        if pid == 0:
            code = 1
            try:
                channel.close()
                code = _child(role, request["names"], fds)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(BaseException):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            gone = os.pidfd_open(pid)
            socket.send_fds(channel, [json.dumps({"pid": pid}).encode()], [gone])
            os.close(gone)


def main(role: Role, channel_fd: int, folders: Sequence[str]) -> None:
    """Import what forks need, also from these folders, then fork until the parent's end closes."""
    sys.path += [folder for folder in folders if folder not in sys.path]
    # Counting the work of a call and recording one import torch._dynamo, which takes longer than torch itself.
    for name in ("torch", "torch._dynamo"):
        importlib.import_module(name)
    here = Path(__file__).parent
    if role == "confined":
        spec = importlib.util.spec_from_file_location("stitchcuda_sandbox", here / "evaluation" / "sandbox.py")
        assert spec is not None
        assert spec.loader is not None
        sandbox = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = sandbox
        spec.loader.exec_module(sandbox)
    else:
        sys.path.insert(0, str(here.parent))
        for name in PRELOADED:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _serve(role, socket.socket(fileno=channel_fd))


if __name__ == "__main__":
    main("confined" if sys.argv[1] == "confined" else "trusted", int(sys.argv[2]), sys.argv[3:])
