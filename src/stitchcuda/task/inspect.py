"""Validate a Task by running it once in a process of its own, before anything expensive starts.

The facts that come back describe the Task (shapes, randomness, state); they are not a measurement of anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stitchcuda import nursery
from stitchcuda.errors import TaskError
from stitchcuda.task.model import Task, TaskFacts

PR_SET_PDEATHSIG = 1
"""The trial ends with the process that started it, also when a signal ends that one between fork and ``try``."""


def inspect_task(task: Task, *, timeout_s: float = 120) -> TaskFacts:
    """Run the reference a few times in a subprocess and return what it showed.

    Raises TaskError, in a sentence, for a model that does not construct or run, that returns no tensor, that
    needs more memory than is available, or that takes longer than ``timeout_s`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="stitchcuda-inspect-") as folder:
        request, answer, log = (Path(folder) / name for name in ("task.json", "facts.json", "log.txt"))
        limit = available_bytes(task.target.kind)
        request.write_text(json.dumps(task.model_dump() | {"memory_limit": limit}), encoding="utf-8")
        code = _run_probe(task, request, answer, log, limit, timeout_s)
        if not answer.exists() or not answer.stat().st_size:
            raise TaskError(_death(task, code, log, limit))
        return interpret(task, json.loads(answer.read_text(encoding="utf-8")), limit)


def interpret(task: Task, result: dict[str, Any], limit: int) -> TaskFacts:
    """The probe's answer as facts; its error as a TaskError in a sentence. ``limit`` is the memory it had, bytes."""
    if "error" in result:
        raise TaskError(_sentence(task, result["error"], limit))
    return TaskFacts.model_validate({name: value for name, value in result.items() if name != "needed_bytes"})


def available_bytes(kind: str) -> int:
    """Memory a Task may use: on cpu what the system and the process's cgroup still give, on cuda the device's free
    bytes as nvidia-smi tells them (of the first that this process sees; falling back to no limit)."""
    if kind == "cuda":
        return _free_device_bytes()
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        maximum = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if maximum != "max":
            stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
            available = min(available, int(maximum) - used + int(stat.get("inactive_file", 0)))
    return max(available, 0)


def _free_device_bytes() -> int:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    # It does not know every name that CUDA does.
    for which in [[f"--id={first}"], []] if first else [[]]:
        command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", *which]
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
            out = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
            return int(out.splitlines()[0]) * 2**20
    return 2**62


def _run_probe(task: Task, request: Path, answer: Path, log: Path, limit: int, timeout_s: float) -> int:
    libc = ctypes.CDLL(None)
    limits = {resource.RLIMIT_CORE: 0} | ({resource.RLIMIT_DATA: limit} if task.target.kind == "cpu" else {})

    def confine() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for kind, value in limits.items():
            resource.setrlimit(kind, (value, value))

    module, arguments = "stitchcuda.task.probe", [str(request), str(answer)]
    with log.open("wb") as sink:
        forked = None
        if nursery.forks(task.target.kind):
            forked = nursery.start_module(module, arguments, output=sink.fileno(), limits=limits, from_here=True)
        process: nursery.Process = forked or subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=confine,
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TaskError(
                f"task {task.name} did not finish its trial run within {timeout_s:g} s; "
                "make the inputs smaller, or look for what it waits for"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _sentence(task: Task, error: dict[str, Any], limit: int) -> str:
    if error["kind"] == "sentence":
        return f"task {task.name}: {error['text']}"
    if error["kind"] == "memory":
        return (
            f"task {task.name} needs at least {_size(error['needed'])} for weights and inputs, but "
            f"{_size(error['available'])} is available; make it smaller or use a larger machine"
        )
    # A line that raises says in its own way what the error says.
    code = "" if error["code"].startswith("raise ") else f" ({error['code']})"
    where = f" at line {error['line']}{code}" if error["line"] else ""
    said = f": {error['text']}" if error["text"] else ""
    if error["kind"] == "allocation":
        return (
            f"task {task.name} ran out of memory in {error['stage']}{where}; {_size(limit)} was available{said}. "
            "Make it smaller or use a larger machine"
        )
    if task.residence == "host" and "device" in said and "forward" in error["stage"]:
        said += "; with RESIDENCE host the inputs are in host memory, and forward must copy them to the model's device"
    return f"task {task.name} does not run: {error['stage']} raised {error['type']}{where}{said}"


def _death(task: Task, code: int, log: Path, limit: int) -> str:
    lines = [line for line in log.read_text(errors="replace")[-4000:].splitlines() if line.strip()]
    last = f"; its last words: {lines[-1].strip()[:300]}" if lines else ""
    if code == -signal.SIGKILL:
        return f"task {task.name} was killed in its trial run, probably for memory; {_size(limit)} was available{last}"
    if code < 0:
        return f"task {task.name} died in its trial run by {signal.Signals(-code).name}{last}"
    return f"task {task.name} ended its own trial run with exit code {code} before it was done{last}"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**29 else f"{count / 2**20:.0f} MiB"
