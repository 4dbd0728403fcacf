"""Starts runners and oracles on cpu in milliseconds: a process imports torch once, and others are forked from it
instead of importing torch anew. It never runs a Program, holds no secret and reads nobody's settings: those go from the
supervisor straight to the fork. On cuda, where a process must open the device itself, nothing is forked.

The supervisor's end is ``start_runner`` and ``start_oracle``, each with a process of its own to fork from; the rest is
that process itself, which needs torch and the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
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

Role = Literal["runner", "oracle"]

STDOUT = "stdout"
"""Name of the descriptor that becomes a fork's standard output and error."""
CONFIG = "config"
"""Name of the descriptor that a fork reads its settings from."""
START_SECONDS = 120.0
"""Longest time to wait for torch to be imported, or for an answer."""
KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
KEPT_PREFIXES = ("GOMP_", "KMP_", "MALLOC_", "GLIBC_")
"""Of the environment, what libraries read when they are loaded; the rest reaches a fork with its settings."""
KEPT_BY_ORACLE = (*KEPT_PREFIXES, "TORCH_", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "MKL_")
"""What a Program's environment is scrubbed of, and the reference's is not."""


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
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            raise FileNotFoundError("torch is not installed in this Python")
        folder = str(Path(found.origin).parents[1])
        self.owner = os.getpid()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(START_SECONDS)
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__, role, str(theirs.fileno()), folder],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
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

    def start(self, role: Role, config: dict[str, Any], fds: Mapping[str, int]) -> Forked:
        """Fork one that plays ``role`` with ``config``, in which ``fds`` are entered by the numbers they get there."""
        memory = os.memfd_create("config", os.MFD_CLOEXEC)
        try:
            os.write(memory, json.dumps(config).encode())
            os.lseek(memory, 0, os.SEEK_SET)
            named = {**fds, CONFIG: memory}
            answer, (gone,) = self.ask({"role": role, "names": list(named)}, list(named.values()))
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


_nurseries: dict[tuple[Role, frozenset[tuple[str, str]]], Nursery] = {}
_guard = threading.Lock()


def nursery(role: Role, **environment: str) -> Nursery:
    """This process's nursery for a role and the environment as it is now, started where there is none.

    ``environment`` is added. Raises OSError when no process can be started.
    """
    prefixes = KEPT_BY_ORACLE if role == "oracle" else KEPT_PREFIXES
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(prefixes)} | environment
    key = role, frozenset(kept.items())
    with _guard:
        if not _nurseries:
            atexit.register(_close_all)
        found = _nurseries.get(key)
        if found is None or not found.usable():
            found = _nurseries[key] = Nursery(role, kept)
        return found


def _close_all() -> None:
    for found in _nurseries.values():
        if found.owner == os.getpid():
            found.close()


def start_runner(config: dict[str, Any], fds: Mapping[str, int]) -> Forked | None:
    """A runner by fork; None where that is not possible, and the caller is to start an interpreter."""
    try:
        return nursery("runner").start("runner", config, fds)
    except (OSError, ValueError):
        return None


def start_oracle(environment: Mapping[str, str], channel: int, output: int) -> Forked | None:
    """An oracle by fork; None where that is not possible. What its runners are forked from starts beside it."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    searched = environment.get("PYTHONPATH", "").split(os.pathsep)
    config = {
        "environment": dict(environment),
        "search_path": [path for path in searched if path],
        "user_site": user,
        "folder": os.getcwd(),
    }
    try:
        # How OpenMP's threads wait is settled when torch is imported.
        waiting = {name: environment[name] for name in ("OMP_WAIT_POLICY",) if name in environment}
        oracles = nursery("oracle", **waiting)
        nursery("runner")
        return oracles.start("oracle", config, {"channel_fd": channel, STDOUT: output})
    except (OSError, ValueError):
        return None


# ---- The process itself ----


def _child(role: Role, names: Sequence[str], fds: Sequence[int], sandbox: Any) -> int:
    os.setsid()
    given = dict(zip(names, fds, strict=True))
    output = given.pop(STDOUT)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    with os.fdopen(given.pop(CONFIG), "rb") as file:
        config = json.load(file)
    if role == "oracle":
        os.environ.clear()
        os.environ.update(config["environment"])
        os.chdir(config["folder"])
        sys.dont_write_bytecode = True
        sys.path[:] = [*config["search_path"], *sys.path, *config["user_site"]]
        oracle = importlib.import_module("stitchcuda.evaluation.oracle")
        oracle.serve(socket.socket(fileno=given["channel_fd"]))
        return 0
    for fd in given.values():
        os.set_inheritable(fd, True)
    return int(sandbox.launch(config | given))


def _serve(channel: socket.socket, sandbox: Any) -> None:
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
                code = _child(request["role"], request["names"], fds, sandbox)
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


def main(role: str, channel_fd: int, torch_folder: str) -> None:
    """Import what ``role`` needs, then fork until the supervisor's end closes."""
    import gc

    if torch_folder not in sys.path:
        sys.path.append(torch_folder)
    spec = importlib.util.spec_from_file_location("stitchcuda_sandbox", Path(__file__).with_name("sandbox.py"))
    assert spec is not None
    assert spec.loader is not None
    sandbox = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = sandbox
    spec.loader.exec_module(sandbox)
    import torch  # noqa: F401

    if role == "oracle":
        sys.path.insert(0, str(Path(__file__).parents[2]))
        # Counting the work of a call needs the second; it takes longer to import than torch itself.
        for name in ("stitchcuda.evaluation.oracle", "torch._dynamo"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=channel_fd), sandbox)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
