"""A worker process: an Executor behind a socket, and the handle of the process that started it. The place decides when
to start another; here is only one process's life."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from stitchcuda.compute.hiding import hide
from stitchcuda.compute.model import Job, Outcome
from stitchcuda.evaluation.channel import receive, send

END_SECONDS = 5.0
"""What a process has to end its oracles and runners before it is killed."""
START_SECONDS = 120.0


class WorkerDied(Exception):
    """The process is gone; the message says how, with its last words."""


class TimeLimit(Exception):
    """The job's time limit passed, and the process was ended."""


class WorkerProcess:
    """One child process that does one job at a time. It ends when this object is closed or this process ends."""

    def __init__(
        self,
        cache: Path,
        *,
        name: str = "",
        environment: Mapping[str, str] | None = None,
        open_tasks: int = 2,
        hidden: Path | None = None,
    ) -> None:
        """``hidden`` is a folder that neither it nor what it starts shall see; it does no job where that fails."""
        ours, theirs = socket.socketpair()
        self.channel = ours
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        settings = {"cache": str(cache.absolute()), "name": name, "open_tasks": open_tasks}
        settings |= {"hidden": str(hidden.absolute())} if hidden is not None else {}
        source = str(Path(__file__).parents[2])
        given = dict(os.environ if environment is None else environment)
        given["PYTHONPATH"] = os.pathsep.join(filter(None, (source, given.get("PYTHONPATH"))))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stitchcuda.compute.process", str(theirs.fileno()), json.dumps(settings)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.errors,
                stderr=self.errors,
                env=given,
                start_new_session=True,
            )
        except OSError as error:
            self.errors.close()
            ours.close()
            raise WorkerDied(f"a worker process could not be started: {error}") from None
        finally:
            theirs.close()

    def run(self, job: Job, *, artifacts: Path | None = None) -> Outcome:
        """Do a job there. Raises WorkerDied, or TimeLimit after the job's; either way the process is gone then."""
        head = json.dumps({"artifacts": str(artifacts) if artifacts is not None else None}).encode()
        sent = False
        try:
            self.channel.settimeout(START_SECONDS)
            send(self.channel, head)
            send(self.channel, job.encode())
            sent = True
            self.channel.settimeout(job.time_limit_s)
            data, _ = receive(self.channel)
        except TimeoutError:
            self.kill()
            if not sent:
                raise WorkerDied(f"the worker process took no job within {START_SECONDS:g} s") from None
            raise TimeLimit(
                f"the job took longer than its limit of {job.time_limit_s:g} s, which is no verdict on a program; the "
                "machine may be busy or stuck"
            ) from None
        except OSError:
            data = None
        except BaseException:
            self.kill()
            raise
        if data is None:
            raise WorkerDied(self._last_words())
        return Outcome.decode(data)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def alive(self) -> bool:
        """Whether it can take a job."""
        return self.channel.fileno() >= 0 and self.process.poll() is None

    def kill(self) -> None:
        """End it at once; what it started ends with it."""
        self.process.kill()
        self._forget()

    def close(self) -> None:
        """Let it end what it started; killed when that takes long. Safe to call twice, and from another thread than
        the one that waits for a job, which gets WorkerDied."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(timeout=END_SECONDS + 1)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._forget()

    def _forget(self) -> None:
        self.process.wait()
        self.channel.close()
        if not self.errors.closed:
            self.errors.close()

    def _last_words(self) -> str:
        try:
            code = self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        text = ""
        with contextlib.suppress(OSError, ValueError):
            self.errors.seek(0, os.SEEK_END)
            self.errors.seek(max(0, self.errors.tell() - 1500))
            text = self.errors.read().decode("utf-8", "replace").strip()
        self._forget()
        return f"the worker process ended by {how}" + (f": {text}" if text else "")


# ---- The process itself ----


class _Stopped(SystemExit):
    """The other end is gone, or SIGTERM came."""


def _stop(*_: object) -> NoReturn:
    raise _Stopped(0)


def _watch(channel: socket.socket) -> None:
    """Stop the main thread when the other end of ``channel`` closes; end the process when it does not stop."""
    import select

    poll = select.poll()
    poll.register(channel, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    poll.poll()
    timer = threading.Timer(END_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Take jobs from the socket until its other end closes."""
    settings = json.loads(sys.argv[2])
    if "hidden" in settings:
        hide(Path(settings["hidden"]))  # before anything is imported that starts a thread
    from stitchcuda.compute.executor import Executor

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    executor = Executor(Path(settings["cache"]), name=settings["name"], open_tasks=settings["open_tasks"])
    threading.Thread(target=_watch, args=(channel,), daemon=True).start()
    try:
        while True:
            head, _ = receive(channel)
            data, _ = receive(channel) if head is not None else (None, [])
            if head is None or data is None:
                return
            artifacts = json.loads(head)["artifacts"]
            outcome = executor.run(Job.decode(data), Path(artifacts) if artifacts else None)
            send(channel, outcome.encode())
    except OSError:
        return
    finally:
        executor.close()


if __name__ == "__main__":
    main()
