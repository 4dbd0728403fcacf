"""Runs a profiler and what it profiles in the runner's confinement, and brings back the files they wrote.

The same walls as for a Program under evaluation, with what profilers need left open in the filter of system calls. Used
in passes of its own, never while a clock counts. Which commands: ``profiling.capture``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation import sandbox, wire
from stitchcuda.evaluation.runner_client import Drain

STATUS = "stitchcuda.status.json"
WORK = "{work}"
"""Stands for the confined working folder in commands and in the values of the environment."""
SYS_ADMIN, PERFMON = 21, 38
"""Linux's capabilities of which the driver asks one from whoever reads performance counters."""
PRINTED = 32 << 10
DISK = 2 << 30
GRACE_S = 15.0


@dataclass
class Confined:
    """What came of a run: files by name, exit codes of the commands, what was printed."""

    files: dict[str, bytes]
    codes: list[int | None] = field(default_factory=list)
    printed: str = ""
    missing: list[str] = field(default_factory=list)
    """What of the confinement this machine did not allow."""

    @property
    def ok(self) -> bool:
        """Whether all commands ended well."""
        return bool(self.codes) and all(code == 0 for code in self.codes)


def torch_folder() -> str:
    """The folder that has torch in it. Raises InfrastructureError without torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise InfrastructureError("torch is not installed in this Python")
    return str(Path(spec.origin).parents[1])


def run_confined(
    commands: Sequence[Sequence[str]],
    files: Mapping[str, bytes],
    outputs: Sequence[str],
    *,
    level: str,
    timeout_s: float,
    trusted: bool = False,
    environment: Mapping[str, str] | None = None,
    readable: Sequence[str] = (),
    counters: bool = False,
) -> Confined:
    """Run ``commands`` in turn until one fails, in a folder with ``files``; bring ``outputs`` (relative names) back.

    ``{work}`` in a word is that folder. ``level`` is one of ``sandbox.LEVELS``. ``counters``: keep, as root, the user
    id and the capabilities that reading performance counters needs. Raises InfrastructureError when nothing could be
    started.
    """
    workdir = Path(tempfile.mkdtemp(prefix="stitchcuda-profile-"))
    workdir.chmod(0o711)
    program_fd = os.memfd_create("files")
    output_fd = os.memfd_create("outputs")
    null = [os.open(os.devnull, os.O_RDWR) for _ in range(2)]
    leash_read, leash = os.pipe()
    printed_read, printed_write = os.pipe()
    extra = {key: value.replace(WORK, str(workdir)) for key, value in (environment or {}).items()}
    variables = sandbox.scrubbed_environment(str(workdir), extra)
    torch = torch_folder()
    config = {
        "command_fd": null[0],
        "reply_fd": null[1],
        "arena_fd": output_fd,
        "program_fd": program_fd,
        "leash_fd": leash_read,
        "entry": str(Path(__file__).with_name("confined.py")),
        "wire": wire.__file__,
        "commands": [[word.replace(WORK, str(workdir)) for word in words] for words in commands],
        "outputs": list(outputs),
        "status": STATUS,
        "timeout_s": timeout_s,
        "level": level,
        "trusted": trusted,
        "profiling": True,
        "capabilities": [SYS_ADMIN, PERFMON] if counters else [],
        "stays_root": counters,
        "workdir": str(workdir),
        "environment": variables,
        "limits": {"file_bytes": DISK // 2, "disk_bytes": DISK, "processes": 4096, "address_bytes": 0},
        "torch_folder": torch,
        "readable": _readable([*readable, torch]),
    }
    try:
        wire.put_files(program_fd, dict(files))
        process = subprocess.Popen(
            [sys.executable, "-I", sandbox.__file__, json.dumps(config)],
            pass_fds=[*null, output_fd, program_fd, leash_read],
            stdin=subprocess.DEVNULL,
            stdout=printed_write,
            stderr=printed_write,
            env=variables,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        for fd in (*null, output_fd, program_fd, leash_read, leash, printed_read, printed_write):
            os.close(fd)
        shutil.rmtree(workdir, ignore_errors=True)
        raise InfrastructureError(f"a confined process could not be started: {error}") from None
    for fd in (*null, program_fd, leash_read, printed_write):
        os.close(fd)
    drain = Drain(printed_read, PRINTED)
    try:
        _wait(process, timeout_s + GRACE_S)
        return _taken(output_fd, drain.text())
    finally:
        if process.poll() is None:
            sandbox.kill_tree(process.pid)
        process.wait()
        os.close(leash)
        os.close(output_fd)
        drain.thread.join(timeout=1)
        shutil.rmtree(workdir, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(until - time.monotonic(), 0.1))


def _taken(output_fd: int, printed: str) -> Confined:
    """The outputs, where the confined process came so far as to hand them over. It is not trusted to have."""
    files: dict[str, bytes] = {}
    try:
        with open(output_fd, "rb", closefd=False) as memory:
            size = memory.seek(0, os.SEEK_END)
            memory.seek(0)
            while head := memory.read(wire.FILE.size):
                length, count = wire.FILE.unpack(head)
                if length > 4096 or count > size:
                    raise ValueError("impossible sizes")
                name = memory.read(length).decode()
                files[name] = memory.read(count)
        status = json.loads(files.pop(STATUS, b"{}"))
        codes = [code if isinstance(code, int) else None for code in status.get("codes", [])]
        missing = [str(name) for name in status.get("missing", [])]
    except (ValueError, OSError, AttributeError, TypeError, RecursionError, struct.error) as error:
        return Confined({}, [], f"{printed}\n[the outputs cannot be read: {error}]")
    return Confined(files, codes, printed, missing)


def _readable(extra: Sequence[str]) -> list[str]:
    """What must be readable under another user id."""
    here = Path(__file__).parent
    paths = [sys.base_prefix, sys.prefix, os.path.dirname(os.__file__), str(here), str(Path(sandbox.__file__).parent)]
    paths += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    paths += [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), *extra]
    return list(dict.fromkeys(path for path in paths if path and os.path.exists(path)))
