"""The supervisor's end of the oracle: starts it, asks, and turns its failures into ``InfrastructureError``. No
torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stitchcuda import nursery
from stitchcuda.errors import InfrastructureError, TaskError
from stitchcuda.evaluation.channel import receive, send
from stitchcuda.evaluation.device_gate import Holder, free


class OracleClient:
    """One oracle process; requests of several threads are answered one after the other."""

    def __init__(self, timeout_s: float, kind: str = "cuda", gate: Holder | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.channel = ours
        self.lock = threading.Lock()
        self.gate = gate or free()
        self.channel.settimeout(timeout_s)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        source = str(Path(__file__).parents[2])
        environment = os.environ | {"OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        forked = None
        if nursery.forks(kind):
            nursery.expect()
            forked = nursery.start_module(
                "stitchcuda.evaluation.oracle",
                [],
                output=self.errors.fileno(),
                channel=theirs.fileno(),
                environment=environment,
            )
        self.process: nursery.Process = forked or subprocess.Popen(
            [sys.executable, "-P", "-m", "stitchcuda.evaluation.oracle", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.errors,
            stderr=self.errors,
            env=environment,
            start_new_session=True,
        )
        theirs.close()

    def ask(self, op: str, *, fds: Sequence[int] = (), **fields: Any) -> Any:
        """One request; InfrastructureError when the oracle fails, with its last words."""
        with self.gate.hold("start" if op == "init" else "work"), self.lock:
            return self._ask(op, fds, fields)

    def _ask(self, op: str, fds: Sequence[int], fields: dict[str, Any]) -> Any:
        if self.channel.fileno() < 0:
            raise InfrastructureError("the oracle process has ended already")
        try:
            send(self.channel, json.dumps({"op": op} | fields).encode(), list(fds))
            data, _ = receive(self.channel)
        except TimeoutError:
            self.close()
            raise InfrastructureError(
                f"the oracle gave no answer to '{op}' in time; the reference may be too slow here, "
                "then raise oracle_timeout_s"
            ) from None
        except OSError as error:
            data = None
            del error
        except BaseException:
            # Interrupted in between, the next answer would be taken for another question's.
            self.close()
            raise
        if data is None:
            raise InfrastructureError(f"the oracle process ended during '{op}': {self.last_words()}")
        answer = json.loads(data)
        if "answer" in answer:
            return answer["answer"]
        if answer["kind"] == "task":
            raise TaskError(f"the task cannot be evaluated: {answer['error']}")
        what = "the machine ran out of memory for the reference" if answer["kind"] == "memory" else "the oracle failed"
        raise InfrastructureError(f"{what} during '{op}': {answer['error']}")

    def last_words(self) -> str:
        """The end of what the oracle printed, and how it ended."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, self.errors.tell() - 2000))
        text = self.errors.read().decode("utf-8", "replace").strip()
        return f"exit code {code}; {text[-1500:] or 'it printed nothing'}"

    def close(self) -> None:
        """End the process, which holds nothing worth a clean exit; safe to call twice."""
        self.channel.close()
        self.process.kill()
        self.process.wait()
        if not self.errors.closed:
            self.errors.close()
