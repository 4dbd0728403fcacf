"""Many variants of device code compiled, checked against given outputs, and timed: hundreds a minute. For choosing
among variants only: what is chosen becomes a Program, and that is judged by ``evaluator`` under all its rules.

Compilers run on the CPU while the device runs what is compiled. Kernels are launched by the harness, so that one
process serves all variants until one of them breaks its context.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from stitchcuda.errors import DeviceError, InfrastructureError, ProgramError
from stitchcuda.evaluation import nvrtc_runner
from stitchcuda.evaluation.device_gate import Gate, gate_of
from stitchcuda.evaluation.nvrtc import Compiled, Nvrtc
from stitchcuda.evaluation.nvrtc_plan import KernelProgram, Resolved, resolve
from stitchcuda.evaluation.timing import quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DRIVER = "libcuda.so.1"
START_SECONDS = 60.0
AHEAD = 32
"""Variants that are compiled ahead of the device."""

Outcome = Literal["correct", "wrong_output", "build_failed", "refused", "crashed", "timed_out"]


@dataclass(frozen=True)
class Variant:
    """One variant and what came of it. ``seconds``: median of all its launches together, by device events, infinite
    unless correct; ``error``: largest relative norm of an output's difference from what was expected."""

    program: KernelProgram
    outcome: Outcome
    message: str
    seconds: float = float("inf")
    n: int = 0
    error: float = float("nan")
    compile_seconds: float = 0.0
    cached: bool = False


class Tuner:
    """Runs variants that take the same inputs and give the same outputs; a context manager, one thread at a time.

    ``sizes`` are for the plans' expressions. ``inputs`` and ``expected`` are arrays by buffer name, with as many bytes
    as the buffer (bfloat16 as uint16). ``tolerance`` bounds the relative norm of the difference. Raises ToolMissing
    without NVRTC, DeviceError without a device.
    """

    def __init__(
        self,
        arch: str,
        *,
        sizes: Mapping[str, int],
        inputs: Mapping[str, NDArray[Any]],
        expected: Mapping[str, NDArray[Any]],
        tolerance: float = 1e-5,
        repeats: int = 20,
        seconds: float = 0.25,
        timeout_s: float = 10.0,
        cache: Path | None = None,
        workers: int | None = None,
        gate: Gate | None = None,
        driver: str = DRIVER,
    ) -> None:
        self.sizes, self.inputs, self.expected = sizes, inputs, expected
        self.tolerance, self.repeats, self.seconds, self.timeout_s = tolerance, repeats, seconds, timeout_s
        self.gate = gate or gate_of("cuda")
        self.driver = driver
        self.compilers = Nvrtc(arch, cache=cache, workers=workers)
        self.workers = workers or max(1, len(os.sched_getaffinity(0)))
        self._launcher: _Launcher | None = None

    def __enter__(self) -> Tuner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self._drop()
        self.compilers.close()

    def run(self, variants: Sequence[KernelProgram]) -> Iterator[Variant]:
        """Each variant's outcome, in order, as soon as it is there."""
        with ThreadPoolExecutor(self.workers) as pool:
            pending: list[Future[Compiled]] = []
            for index, variant in enumerate(variants):
                while len(pending) < min(len(variants), index + AHEAD):
                    pending.append(pool.submit(self.compilers.compile, variants[len(pending)].code))
                yield self._one(variant, pending[index].result())

    def _one(self, program: KernelProgram, compiled: Compiled) -> Variant:
        bare = Variant(program, "build_failed", compiled.log, compile_seconds=compiled.seconds, cached=compiled.cached)
        if not compiled.ok:
            return bare
        try:
            resolved = resolve(program, self.sizes)
            self._fits(resolved)
        except ProgramError as refusal:
            return replace(bare, outcome="refused", message=str(refusal))
        answer, outputs = self._launch(resolved, compiled)
        if "error" in answer:
            return replace(bare, outcome="timed_out" if answer.get("late") else "crashed", message=answer["error"])
        error, message = self._compare(outputs)
        if message:
            return replace(bare, outcome="wrong_output", message=message, error=error)
        median, count = quantile(answer["events"], 0.5), len(answer["events"])
        message = f"{median * 1e6:.1f} us, median of {count}"
        return replace(bare, outcome="correct", message=message, seconds=median, n=count, error=error)

    def _fits(self, resolved: Resolved) -> None:
        for role, arrays in (("input", self.inputs), ("output", self.expected)):
            named = {name: size for name, (size, its) in resolved.buffers.items() if its == role}
            if named != {name: array.nbytes for name, array in arrays.items()}:
                raise ProgramError(
                    f"the plan's {role}s have these bytes: {named}; "
                    f"given are { ({name: array.nbytes for name, array in arrays.items()}) }"
                )

    def _launch(self, resolved: Resolved, compiled: Compiled) -> tuple[dict[str, Any], dict[str, bytes]]:
        launcher = self._launcher
        if launcher is None or not launcher.alive() or not launcher.suits(resolved):
            self._drop()
            with self.gate.hold("start", "tune"):
                launcher = self._launcher = _Launcher(resolved, self.inputs, self.driver)
        launches = [
            each.model_dump(exclude={"kernel"}) | {"symbol": compiled.names[each.kernel]} for each in resolved.launches
        ]
        request = {
            "op": "run",
            "cubin": base64.b64encode(compiled.cubin).decode(),
            "launches": launches,
            "repeats": self.repeats,
            "seconds": self.seconds,
        }
        with self.gate.hold("clock", "tune"):
            answer = launcher.ask(request, self.timeout_s)
        if "error" in answer:
            self._drop()
            return answer, {}
        return answer, launcher.outputs()

    def _drop(self) -> None:
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

    def _compare(self, outputs: Mapping[str, bytes]) -> tuple[float, str]:
        """The largest error, and in a sentence which output is wrong; empty when none is."""
        import numpy as np

        worst = 0.0
        for name, wanted in self.expected.items():
            got = _numbers(np.frombuffer(outputs[name], dtype=wanted.dtype).reshape(wanted.shape))
            want = _numbers(wanted)
            if not np.array_equal(np.isfinite(got), np.isfinite(want)):
                at = int(np.argmax(np.isfinite(got).ravel() != np.isfinite(want).ravel()))
                return float("inf"), f"{name}[{at}] is {got.ravel()[at]}, expected {want.ravel()[at]}"
            finite = np.isfinite(want)
            difference = float(np.linalg.norm(got[finite] - want[finite]))
            norm = float(np.linalg.norm(want[finite]))
            error = difference / norm if norm > 0 else difference
            worst = max(worst, error)
            if error > self.tolerance:
                at = int(np.argmax(np.abs(np.where(finite, got - want, 0)).ravel()))
                return worst, (
                    f"{name} is off by {error:.3g} in relative norm, allowed {self.tolerance:.3g}; "
                    f"[{at}] is {got.ravel()[at]:.6g}, expected {want.ravel()[at]:.6g}"
                )
        return worst, ""


def tune(tuner: Tuner, variants: Sequence[KernelProgram]) -> list[Variant]:
    """All variants, the fastest correct one first."""
    return sorted(tuner.run(variants), key=lambda variant: variant.seconds)


def _numbers(array: NDArray[Any]) -> NDArray[np.float64]:
    """As float64; two-byte unsigned integers are bfloat16."""
    import numpy as np

    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


class _Launcher:
    """One ``nvrtc_runner`` with the buffers of a plan."""

    def __init__(self, resolved: Resolved, inputs: Mapping[str, NDArray[Any]], driver: str) -> None:
        import numpy as np

        self.plan = resolved.buffers
        self.offsets: dict[str, int] = {}
        total = 0
        for name, (size, role) in self.plan.items():
            self.offsets[name] = total if role != "scratch" else -1
            total += (size + 255) // 256 * 256 if role != "scratch" else 0
        self.total = max(total, 256)
        self.left = b""
        self.fd = os.memfd_create("nvrtc", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.total)
        for name, array in inputs.items():
            _write(self.fd, memoryview(np.ascontiguousarray(array).tobytes()), self.offsets[name])
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", nvrtc_runner.__file__, driver, str(self.fd), str(self.total)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            pass_fds=[self.fd],
            start_new_session=True,
        )
        buffers = [[name, size, self.offsets[name], role] for name, (size, role) in self.plan.items()]
        first = self._read(time.monotonic() + START_SECONDS)
        if first is None or "error" in first:
            self.close()
            raise DeviceError(f"kernels cannot be launched here: {(first or {}).get('error', 'no answer')}")
        answer = self.ask({"op": "setup", "buffers": buffers}, START_SECONDS)
        if "error" in answer:
            raise InfrastructureError(f"the device gives no memory for the buffers: {answer['error']}")

    def suits(self, resolved: Resolved) -> bool:
        """Whether the buffers are those of another plan too."""
        return resolved.buffers == self.plan

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One request; without an answer in time, or with an error, the process ends."""
        assert self.process.stdin is not None
        began = time.monotonic()
        answer = None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            answer = self._read(began + timeout_s)
        if answer is None:
            late = time.monotonic() - began >= timeout_s
            why = f"the launches took longer than {timeout_s:.0f} s" if late else "the launching process ended"
            answer = {"error": why, "late": late}
        if "error" in answer:
            self.close()
        return answer

    def outputs(self) -> dict[str, bytes]:
        """What the last run wrote, by buffer."""
        return {
            name: _read_all(self.fd, size, self.offsets[name])
            for name, (size, role) in self.plan.items()
            if role == "output"
        }

    def _read(self, deadline: float) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self.left:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(fd, 1 << 16) if ready else b""
            if not part:
                return None
            self.left += part
        line, _, self.left = self.left.partition(b"\n")
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else None

    def close(self) -> None:
        """Kill it and give its memory back; safe to call twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if not self.errors.closed:
            self.errors.close()
            os.close(self.fd)


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data[: 1 << 30], offset)
        data, offset = data[written:], offset + written


def _read_all(fd: int, size: int, offset: int) -> bytes:
    parts = []
    while size:
        part = os.pread(fd, min(size, 1 << 30), offset)
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)
