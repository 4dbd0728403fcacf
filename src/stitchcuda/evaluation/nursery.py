"""Starts runners on cpu in milliseconds: a process imports torch once, and every runner is forked from it instead of
importing torch anew. It never runs a Program, holds no secret and reads no runner's settings: those go from the
supervisor straight to the fork. On cuda, where a process must open the device itself, runners are not forked.

The supervisor's end is ``start_runner``; the rest is the process itself, which needs torch and the standard library.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

STDOUT = "stdout"
"""Name of the descriptor that becomes a fork's standard output and error."""
CONFIG = "config"
"""Name of the descriptor that a fork reads its settings from."""
START_SECONDS = 120.0
"""Longest time to wait for torch to be imported, or for an answer."""
KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
KEPT_PREFIXES = ("GOMP_", "KMP_", "MALLOC_", "GLIBC_")
"""Of the environment, what libraries read when they are loaded; the rest reaches a fork with its settings."""


class Process(Protocol):
    """What a supervisor needs of a runner's process, however it was started."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Exit code once it has ended; subprocess.TimeoutExpired when ``timeout`` seconds were not enough."""
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

    def _reap(self) -> None:
        try:
            self.returncode = int(self._nursery.ask({"reap": self.pid})[0]["code"])
        except (OSError, ValueError):
            self.returncode = -signal.SIGKILL
        os.close(self._gone)


class Nursery:
    """The supervisor's end of one nursery process, which ends with the supervisor."""

    def __init__(self, environment: Mapping[str, str], torch_folder: str) -> None:
        self.owner = os.getpid()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(START_SECONDS)
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(theirs.fileno()), torch_folder],
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

    def start(self, config: dict[str, Any], fds: Mapping[str, int]) -> Forked:
        """Fork one that runs ``sandbox.launch(config)``, where ``fds`` are entered by the numbers they get there."""
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


_nurseries: dict[frozenset[tuple[str, str]], Nursery] = {}
_guard = threading.Lock()


def nursery(torch_folder: str) -> Nursery:
    """This process's nursery for its environment as it is now, started where there is none. OSError when that fails."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(KEPT_PREFIXES)}
    key = frozenset(kept.items())
    with _guard:
        found = _nurseries.get(key)
        if found is None or not found.usable():
            found = _nurseries[key] = Nursery(kept, torch_folder)
        return found


def start_runner(config: dict[str, Any], fds: Mapping[str, int], torch_folder: str) -> Forked | None:
    """A runner by fork; None where that is not possible, and the caller is to start an interpreter."""
    try:
        return nursery(torch_folder).start(config, fds)
    except (OSError, ValueError):
        return None


# ---- The process itself ----


def _child(names: Sequence[str], fds: Sequence[int], sandbox: Any) -> int:
    os.setsid()
    given = dict(zip(names, fds, strict=True))
    output = given.pop(STDOUT)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    with os.fdopen(given.pop(CONFIG), "rb") as file:
        config = json.load(file)
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
                code = _child(request["names"], fds, sandbox)
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


def main(channel_fd: int, torch_folder: str) -> None:
    """Import torch, then fork until the supervisor's end closes."""
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

    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=channel_fd), sandbox)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
