"""Compiles programs side by side in processes of their own: NVRTC for ``cuda``, g++ for ``cpu``."""

from __future__ import annotations

import base64
import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coder_experiment import source, stock
from coder_experiment.language import Own, Program

ENTRY = Path(__file__).resolve().parents[2] / "src" / "stitchcuda" / "evaluation" / "nvrtc_entry.py"
"""The process that compiles for the package's own tuner: a line of JSON in, a line of JSON out."""
COMPILE_SECONDS = 20.0


@dataclass(frozen=True)
class Built:
    """What can be launched (a cubin in base64, or a library's path), or why nothing can. ``infrastructure``: the
    problem is the machine's, not the program's."""

    image: str = ""
    cubin: bytes = b""
    problem: str = ""
    infrastructure: bool = False


def kernels(program: Program) -> list[str]:
    """Symbols of the own kernels."""
    return [f"own_{at}" for at, node in enumerate(program.nodes) if isinstance(node, Own)]


class Nvrtc:
    """NVRTC in ``workers`` processes; safe to use from as many threads."""

    def __init__(self, arch: str, workers: int) -> None:
        self.arch, self.library = arch, find_nvrtc()
        self.free: list[subprocess.Popen[bytes]] = []
        self.guard, self.count = threading.Lock(), threading.Semaphore(workers)

    def stock(self) -> Path:
        """The harness's kernels as a file."""
        answer = self._ask(stock.cuda(), [])
        if not answer.get("ok"):
            raise RuntimeError(f"the harness's kernels do not compile: {answer.get('log') or answer.get('error')}")
        path = Path(tempfile.mkdtemp(prefix="coder-stock-")) / "stock.cubin"
        path.write_bytes(base64.b64decode(answer["cubin"]))
        return path

    def build(self, program: Program) -> Built:
        """Compile a program's own kernels."""
        answer = self._ask(source.cuda(program), kernels(program))
        if not answer.get("ok"):
            return Built(problem=first_error(answer.get("log") or answer.get("error") or "no answer"))
        return Built(image=answer["cubin"], cubin=base64.b64decode(answer["cubin"]))

    def _ask(self, text: str, names: list[str]) -> dict[str, Any]:
        options = [f"--gpu-architecture={self.arch}", "-std=c++17", "-default-device", "-w"]
        request = {"source": text, "name": "kernel.cu", "kernels": names, "headers": {}, "options": options}
        with self.count:
            with self.guard:
                worker = self.free.pop() if self.free else None
            if worker is None or worker.poll() is not None:
                worker = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(ENTRY), str(self.library)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                if "version" not in (_line(worker, 60.0) or {}):
                    worker.kill()
                    raise RuntimeError(f"{self.library} cannot be used")
            assert worker.stdin is not None
            answer = None
            with contextlib.suppress(OSError):
                worker.stdin.write(json.dumps(request).encode() + b"\n")
                worker.stdin.flush()
                answer = _line(worker, COMPILE_SECONDS)
            if answer is None:
                worker.kill()
                worker.wait()
                return {"ok": False, "error": "the compiler took too long or ended"}
            with self.guard:
                self.free.append(worker)
            return answer

    def close(self) -> None:
        """End the processes."""
        for worker in self.free:
            worker.kill()
            worker.wait()
        self.free.clear()


class Gxx:
    """g++, a process for each program."""

    def __init__(self, optimise: str = "-O1") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="coder-cpu-"))
        self.optimise = optimise

    def stock(self) -> Path:
        """The harness's functions as a library."""
        built = self._compile(stock.cpp(), "stock")
        if built.problem:
            raise RuntimeError(f"the harness's functions do not compile: {built.problem}")
        return Path(built.image)

    def build(self, program: Program) -> Built:
        """Compile a program's own kernels as functions."""
        text = source.cpp(program)
        return self._compile(text, hashlib.sha256(text.encode()).hexdigest()[:20])

    def _compile(self, text: str, name: str) -> Built:
        path = self.folder / f"{name}.so"
        if path.exists():
            return Built(image=str(path))
        aside = self.folder / f"{name}-{threading.get_ident()}.so"
        command = [
            "g++",
            self.optimise,
            "-march=native",
            "-w",
            "-shared",
            "-fPIC",
            "-std=c++17",
            "-x",
            "c++",
            "-",
            "-o",
        ]
        try:
            done = subprocess.run(
                [*command, str(aside)], input=text, capture_output=True, text=True, timeout=3 * COMPILE_SECONDS
            )
        except subprocess.TimeoutExpired:
            return Built(problem="the compiler took too long")
        if done.returncode:
            return Built(problem=first_error(done.stderr))
        os.replace(aside, path)
        return Built(image=str(path))

    def close(self) -> None:
        """Remove the libraries."""
        import shutil

        shutil.rmtree(self.folder, ignore_errors=True)


def first_error(log: str) -> str:
    """The first error of a compiler's log, without its place; ASCII, for it becomes part of a prompt."""
    plain = log.replace("\N{LEFT SINGLE QUOTATION MARK}", "'").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    log = plain.encode("ascii", "replace").decode()
    for line in log.splitlines():
        if "error" in line:
            return line.split("error", 1)[1].lstrip(": ")[:80]
    return log.strip().splitlines()[0][:80] if log.strip() else "it does not compile"


def find_nvrtc() -> Path:
    """libnvrtc, of NVIDIA's wheels or of the toolkit. Raises RuntimeError."""
    places: list[str] = []
    specification = importlib.util.find_spec("nvidia")
    for folder in (specification.submodule_search_locations or []) if specification else []:
        places += sorted(glob.glob(f"{folder}/*/lib/libnvrtc.so.*"), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        places += sorted(glob.glob(f"{home}/lib64/libnvrtc.so.*") + glob.glob(f"{home}/targets/*/lib/libnvrtc.so.*"))
    for place in places:
        if "builtins" not in place and "alt" not in place:
            return Path(place)
    raise RuntimeError("NVRTC is not on this machine; pip install nvidia-cuda-nvrtc")


def _line(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any] | None:
    """The next line of a process as JSON; None when none comes in time."""
    assert process.stdout is not None
    fd, deadline, parts = process.stdout.fileno(), time.monotonic() + seconds, b""
    while not parts.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(fd, 1 << 16) if ready else b""
        if not part:
            return None
        parts += part
    answer = json.loads(parts)
    return answer if isinstance(answer, dict) else None
