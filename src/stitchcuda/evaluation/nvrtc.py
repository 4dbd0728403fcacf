"""Device code to machine code by NVRTC, in tens of milliseconds: for many variants of one kernel. Sources with host
code are ``build``'s; what to launch, and with what, is in ``nvrtc_plan``.

The compiler runs in processes of its own, confined like the others, which read one source after the other.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import glob
import hashlib
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.errors import InfrastructureError, ToolMissing
from stitchcuda.evaluation import nvrtc_entry
from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.build_errors import digest
from stitchcuda.evaluation.build_tools import arch_number, cuda_roots, find_nvcc
from stitchcuda.evaluation.integrity.static_native import native_macros, outside_files
from stitchcuda.evaluation.jail import Jail, jail
from stitchcuda.evaluation.jail_entry import SETUP_FAILED
from stitchcuda.program.compilers import CUDA_FOLDERS

SOURCE = "kernel.cu"
VERSION = 1
"""Part of every cache key."""

START_SECONDS = 60.0
ANSWER_BYTES = 1 << 28
"""Of one answer at most."""

FIXED_OPTIONS = ("-std=c++17", "-default-device", "-w", "-lineinfo")
"""No fast math: variants are compared under the rules that the finished Program is judged by."""

CUBIN, REPORT = "kernel.cubin", "report.json"


class KernelSource(BaseModel):
    """Device code as NVRTC takes it."""

    model_config = ConfigDict(frozen=True)

    source: str = Field(description="CUDA C++ without host code")
    kernels: tuple[str, ...] = Field(
        description="name expressions of the kernels that are launched: 'scale', 'tile<64, 4>', 'ns::f'"
    )
    headers: dict[str, str] = Field(default_factory=dict, description="further files by the name they are included by")
    defines: dict[str, str | int] = Field(default_factory=dict, description="macros: what makes variants of one source")
    max_registers: int | None = Field(default=None, ge=16, le=255, description="-maxrregcount")


class CompiledReport(BaseModel):
    """What compiling gave, beside the code."""

    model_config = ConfigDict(frozen=True)

    names: dict[str, str] = Field(description="mangled name by name expression")
    log: str = ""


@dataclass(frozen=True)
class Compiled:
    """A cubin, or why there is none. ``names``: mangled names by name expression. ``seconds``: the compiler's own wall
    time, 0.0 when ``cached``. ``log``: at most 2,000 characters."""

    ok: bool
    cubin: bytes
    names: Mapping[str, str]
    log: str
    seconds: float
    cached: bool


class Nvrtc:
    """Compilers of device code for one architecture; a context manager, safe to use from several threads.

    ``workers`` processes compile side by side (default: one for each core). Raises ToolMissing without NVRTC.
    """

    def __init__(self, arch: str, *, cache: Path | None = None, workers: int | None = None) -> None:
        self.library = find_nvrtc()
        self.arch = f"sm_{arch_number(arch)}"
        self.cache = BuildCache(cache) if cache is not None else None
        self.includes = cuda_includes()
        self._free: list[_Worker] = []
        self._count = threading.Semaphore(workers or max(1, len(os.sched_getaffinity(0))))
        self._guard = threading.Lock()
        # What the jail starts ends with the thread that asked for it: that one has to stay.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="nvrtc")

    def __enter__(self) -> Nvrtc:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; nothing can be compiled afterwards. Safe to call twice."""
        with self._guard:
            workers, self._free = self._free, []
        for worker in workers:
            worker.close()
        self._starter.shutdown()

    def options(self, what: KernelSource) -> list[str]:
        """The compiler's command line."""
        options = [f"--gpu-architecture={self.arch}", *FIXED_OPTIONS]
        if what.max_registers is not None:
            options.append(f"-maxrregcount={what.max_registers}")
        if _LIBRARY_HEADERS.match(what.source):
            # Headers that take a second are read once for all variants; the compiler's folder is its worker's own.
            options += ["-pch", "-pch-dir=."]
        return options + [f"-I{folder}" for folder in self.includes]

    def compile(self, what: KernelSource, *, timeout_s: float = 60.0) -> Compiled:
        """Compile, or find it in the cache. A source that is refused or takes longer than ``timeout_s`` seconds gives a
        Compiled that is not ok; InfrastructureError when the compiler's process cannot be started."""
        if problem := _refusal(what):
            return Compiled(False, b"", {}, problem, 0.0, False)
        options, text = self.options(what), source_text(what)
        key = self._key(what, options)
        known = self._known(key)
        if known is not None:
            return known
        with self._worker() as worker:
            answer = worker.ask(
                {
                    "source": text,
                    "name": SOURCE,
                    "kernels": list(what.kernels),
                    "headers": what.headers,
                    "options": options,
                },
                timeout_s,
            )
        if not answer["ok"]:
            text = answer["log"] or answer["error"]
            return Compiled(
                False, b"", {}, digest(text, {SOURCE: what.source} | what.headers), answer["seconds"], False
            )
        cubin = base64.b64decode(answer["cubin"])
        report = CompiledReport(names=answer["names"], log=answer["log"][:2000])
        if self.cache is not None:
            with self.cache.aside(key[:12]) as aside:
                (aside / CUBIN).write_bytes(cubin)
                (aside / REPORT).write_text(report.model_dump_json(), encoding="utf-8")
                self.cache.publish("kernels", key, aside)
        return Compiled(True, cubin, report.names, report.log, answer["seconds"], False)

    def _key(self, what: KernelSource, options: Sequence[str]) -> str:
        parts = [VERSION, _identity(self.library), what.model_dump(), options]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _known(self, key: str) -> Compiled | None:
        folder = self.cache.find("kernels", key) if self.cache is not None else None
        if folder is None:
            return None
        try:
            report = CompiledReport.model_validate_json((folder / REPORT).read_bytes())
            return Compiled(True, (folder / CUBIN).read_bytes(), report.names, report.log, 0.0, True)
        except (OSError, ValueError):
            return None

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._count:
            with self._guard:
                worker = self._free.pop() if self._free else None
            if worker is None or not worker.alive():
                worker = self._starter.submit(_Worker, self.library, self.includes).result()
            yield worker
            if worker.alive():
                with self._guard:
                    self._free.append(worker)


class _Worker:
    """One compiler process."""

    def __init__(self, library: Path, includes: Sequence[str]) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="stitchcuda-nvrtc-")).resolve()
        command = [sys.executable, "-I", "-S", nvrtc_entry.__file__, str(library)]
        roots = (sys.base_prefix, sys.prefix, str(Path(nvrtc_entry.__file__).parent), str(library.parent), *includes)
        for confinement in (jail(), Jail("", ("confinement of compilers",))):
            self.process = subprocess.Popen(
                confinement.command(command, work=self.work, cwd=self.work, roots=roots),
                cwd=self.work,
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.work), "TMPDIR": str(self.work)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self.left = b""
            first = self._read(time.monotonic() + START_SECONDS)
            if first is not None and "version" in first:
                return
            code = self.process.poll()
            self._kill()
            if not confinement.level or (first is None and code not in (None, SETUP_FAILED)):
                break
        self.close()
        raise InfrastructureError(
            f"the NVRTC compiler could not be started: {(first or {}).get('error', f'it ended with {code}')}"
        )

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One request; the process ends when the answer is late or none."""
        assert self.process.stdin is not None
        began = time.monotonic()
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            answer = self._read(began + timeout_s)
        except OSError:
            answer = None
        if answer is not None:
            return answer
        late = time.monotonic() - began >= timeout_s
        self.close()
        why = f"compiling took longer than {timeout_s:.0f} s" if late else "the compiler ended without an answer"
        return {"ok": False, "log": "", "error": why, "seconds": time.monotonic() - began}

    def _read(self, deadline: float) -> dict[str, Any] | None:
        """The next line as JSON; None when none comes in time."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        parts = [self.left]
        total = len(self.left)
        while b"\n" not in parts[-1]:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(fd, 1 << 16) if ready else b""
            total += len(part)
            if not part or total > ANSWER_BYTES:
                return None
            parts.append(part)
        line, _, self.left = b"".join(parts).partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def close(self) -> None:
        """Kill it and remove its folder; safe to call twice."""
        self._kill()
        shutil.rmtree(self.work, ignore_errors=True)


def source_text(what: KernelSource) -> str:
    """The source with its macros defined, behind the library headers that it begins with: what is before them is the
    same for all variants, and is precompiled once."""
    head = library_head(what.source)
    stop = "#pragma nv_hdrstop\n" if "include" in head else ""
    macros = "".join(f"#define {name} {value}\n" for name, value in sorted(what.defines.items()))
    lines = head.count("\n") + 1
    return f'{head}{stop}{macros}#line {lines} "{SOURCE}"\n{what.source[len(head) :]}'


def library_head(source: str) -> str:
    """The lines that a source begins with, as far as they include headers of libraries."""
    begin = _LIBRARY_HEADERS.match(source)
    return begin[0] if begin is not None else ""


def find_nvrtc() -> Path:
    """libnvrtc of the CUDA toolkit or of NVIDIA's Python wheels. Raises ToolMissing."""
    candidates: list[str] = []
    specification = importlib.util.find_spec("nvidia")
    for folder in (specification.submodule_search_locations or []) if specification else []:
        candidates += sorted(glob.glob(f"{folder}/*/lib/libnvrtc.so.*"), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *CUDA_FOLDERS):
        if home:
            for part in ("lib64", "lib", "targets/x86_64-linux/lib"):
                candidates += sorted(glob.glob(f"{home}/{part}/libnvrtc.so.*"), reverse=True)
    for path in candidates:
        if re.search(r"libnvrtc\.so\.\d+$", path):
            return Path(path)
    raise ToolMissing(
        "NVRTC is not on this machine (looked in NVIDIA's Python wheels, CUDA_HOME and /usr/local/cuda); "
        "install it: pip install nvidia-cuda-nvrtc"
    )


@functools.cache
def cuda_includes() -> tuple[str, ...]:
    """Folders with CUDA's headers (cuda_fp16.h, mma.h, cuda/std): of the toolkit, else of wheels; may be empty."""
    found: list[str] = []
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    with contextlib.suppress(ToolMissing):
        homes += cuda_roots(find_nvcc())
    specification = importlib.util.find_spec("nvidia")
    for folder in (specification.submodule_search_locations or []) if specification else []:
        homes += sorted(glob.glob(f"{folder}/*"))
    for home in homes:
        for part in ("include", "targets/x86_64-linux/include"):
            if home and os.path.isfile(f"{home}/{part}/cuda_fp16.h"):
                found += [f"{home}/{part}"]
                if os.path.isdir(f"{home}/{part}/cccl"):
                    found.append(f"{home}/{part}/cccl")
                return tuple(found)
    return ()


@functools.cache
def _identity(library: Path) -> str:
    stat = library.stat()
    return f"{os.path.realpath(library)} {stat.st_size} {stat.st_mtime_ns}"


_LIBRARY_HEADERS = re.compile(r"(?:[ \t]*(?://[^\n]*|#[ \t]*(?:pragma[ \t]+once|include[ \t]*<[^>\n]+>)[ \t]*)?\n)+")
"""The lines that a source begins with, as far as they include headers of libraries."""

_DEFINE = re.compile(r"[A-Za-z_]\w*")
_KERNEL = re.compile(r"[\w:<>, ()&*-]{1,300}")


def _refusal(what: KernelSource) -> str:
    """Why a source is not handed to the compiler; empty when it is."""
    if not what.kernels:
        return "no kernel is named; name at least one"
    for name in what.kernels:
        if not _KERNEL.fullmatch(name):
            return f"{name!r} is no name expression of a kernel"
    for name in what.defines:
        if not _DEFINE.fullmatch(name):
            return f"{name!r} is no macro name"
    texts = {SOURCE: what.source} | what.headers
    macros = native_macros(texts.values())
    for path, text in texts.items():
        for hit in outside_files(path, text, macros):
            return f"{hit.path}:{hit.line}: {hit.what} leads outside; include CUDA's headers or its own only"
    return ""
