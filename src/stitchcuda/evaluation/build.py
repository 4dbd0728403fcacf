"""From a Program's files to a folder that a runner can import: sources compiled, bindings written, all cached.

Nothing of the Program runs here and nothing is loaded: the compiler is the only process that reads it. A
Program without a manifest is only copied; what it compiles on import is the runner's time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stitchcuda.errors import InfrastructureError, ProgramError
from stitchcuda.evaluation.build_errors import cut, digest
from stitchcuda.evaluation.build_tools import Toolchain, cpu_toolchain, cuda_toolchain
from stitchcuda.evaluation.model import Finding
from stitchcuda.program.bindings import render
from stitchcuda.program.files import write_program
from stitchcuda.program.flags import native_sources
from stitchcuda.program.model import Launcher, Manifest, Program
from stitchcuda.program.validate import validate
from stitchcuda.task.model import Precision, Target

VERSION = 1
"""Part of every cache key; raise it when what is written for equal input changes."""

OUTPUT_LIMIT = 2**20
"""Bytes of a compiler's output that are read."""


@dataclass(frozen=True)
class Build:
    """What building a Program gave.

    ``folder`` holds the Program's files, ``bindings.py`` and the library; None unless ``ok``. ``log`` is a
    digest of at most 2,000 characters. ``seconds`` is wall time. ``cached`` says that nothing was compiled.
    ``findings`` are those of the build layer.
    """

    ok: bool
    folder: Path | None
    log: str
    seconds: float
    cached: bool
    findings: tuple[Finding, ...] = ()


def build(
    program: Program,
    target: Target,
    *,
    cache: Path,
    precision: Precision = "fp32",
    timeout_s: float = 300,
) -> Build:
    """Build ``program`` for ``target`` under ``cache``, or find it there.

    Safe with several builders on one cache: everything is written aside and renamed. ``precision`` chooses no
    flags today (fast-math is off for every class) and is part of the key. ``timeout_s`` bounds the compilers
    together.

    A Program that is invalid or does not compile gives a Build that is not ok. Raises ToolMissing without a
    compiler and InfrastructureError when the disk is full or the compiler itself cannot be started.
    """
    start = time.monotonic()
    try:
        validate(program)
        if program.manifest is not None and program.manifest.target != target.kind:
            raise ProgramError(
                f"manifest.json says target {program.manifest.target}, but the task's target is {target.kind}"
            )
    except ProgramError as error:
        return Build(False, None, cut(str(error)), time.monotonic() - start, False)
    try:
        cached, folder = _build(program, target, cache, precision, start + timeout_s)
    except _CompileError as error:
        return Build(False, None, cut(str(error)), time.monotonic() - start, False)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InfrastructureError(
                f"the disk under {cache} is full; free some space or set STITCHCUDA_CACHE"
            ) from None
        raise InfrastructureError(f"the build cache {cache} cannot be used: {error}") from None
    return Build(True, folder, "", time.monotonic() - start, cached)


class _CompileError(Exception):
    """The Program does not compile; the message is its digest."""


def _build(program: Program, target: Target, cache: Path, precision: str, deadline: float) -> tuple[bool, Path]:
    manifest = program.manifest
    toolchain = _toolchain(manifest, target) if manifest is not None else None
    key = _key(program.digest, precision, _describe(toolchain))
    folder = cache / "programs" / key
    if _intact(folder):
        return True, folder
    scratch = cache / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    _sweep(scratch)
    aside = Path(tempfile.mkdtemp(prefix=f"{key[:12]}-", dir=scratch))
    try:
        write_program(program, aside)
        compiled = False
        if manifest is not None and toolchain is not None:
            library, compiled = _library(program, manifest, toolchain, cache, precision, deadline)
            name = f"kernels_{library.stem[:16]}.so"
            shutil.copyfile(library, aside / name)
            (aside / "bindings.py").write_text(render(manifest, name), encoding="utf-8")
        _publish(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return not compiled, folder


def _sweep(scratch: Path) -> None:
    """Remove what builders left behind that were killed an hour ago or earlier."""
    limit = time.time() - 3600
    for path in scratch.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < limit:
                shutil.rmtree(path, ignore_errors=True)


def _toolchain(manifest: Manifest, target: Target) -> Toolchain:
    if target.kind == "cuda":
        return cuda_toolchain(target.arch, tuple(manifest.libraries))
    return cpu_toolchain(target.arch)


def _library(
    program: Program, manifest: Manifest, toolchain: Toolchain, cache: Path, precision: str, deadline: float
) -> tuple[Path, bool]:
    """The shared library in the cache, and whether it had to be compiled."""
    sources = native_sources(program.files, manifest.target)
    native = {path: text for path, text in program.files.items() if not path.endswith((".py", ".md", ".txt"))}
    names = sorted(launcher.name for launcher in manifest.launchers)
    key = _key(json.dumps([native, names], sort_keys=True), precision, _describe(toolchain))
    library = cache / "libraries" / f"{key}.so"
    if _sealed(library):
        return library, False
    work = Path(tempfile.mkdtemp(prefix=f"{key[:12]}-", dir=cache / "scratch"))
    try:
        for path, text in native.items():
            (work / "src" / path).parent.mkdir(parents=True, exist_ok=True)
            (work / "src" / path).write_text(text, encoding="utf-8")
        objects = [str(work / f"{number}.o") for number in range(len(sources))]
        commands = [toolchain.compile(source, target) for source, target in zip(sources, objects, strict=True)]
        # Each command is a process of its own; the threads only wait for them.
        with ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)))) as pool:
            results = list(pool.map(lambda command: _run(command, work, deadline), commands))
        _check(results, native, work, toolchain)
        output = work / "library.so"
        _check([_run(toolchain.link(objects, str(output)), work, deadline)], native, work, toolchain)
        _check_symbols(output, manifest.launchers, work, deadline)
        library.parent.mkdir(parents=True, exist_ok=True)
        _seal(output, library)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return library, True


@dataclass(frozen=True)
class _Result:
    code: int | None
    output: str


def _run(command: list[str], work: Path, deadline: float) -> _Result:
    """Run a compiler in its own process group with a scrubbed environment; code None when time was up."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(work),
        "TMPDIR": str(work),
        "LANG": "C",
        "LC_ALL": "C",
    }
    with tempfile.TemporaryFile(dir=work) as log:
        process = subprocess.Popen(
            command,
            cwd=work / "src",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return _Result(code, log.read(OUTPUT_LIMIT).decode(errors="replace"))


def _check(results: list[_Result], sources: dict[str, str], work: Path, toolchain: Toolchain) -> None:
    output = "\n".join(result.output for result in results if result.code != 0)
    if all(result.code == 0 for result in results):
        return
    if "No space left on device" in output:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if any(result.code is None for result in results):
        raise _CompileError(
            "compiling took longer than the time limit; use fewer template instances and less unrolling"
        )
    killed = [result.code for result in results if result.code is not None and result.code < 0]
    if killed and not re.search(r"(?i)\berror\b", output):
        name = signal.Signals(-killed[0]).name
        raise InfrastructureError(f"{toolchain.compiler} was killed by {name}; is there enough memory to compile?")
    raise _CompileError(digest(output, sources, str(work / "src")))


def _check_symbols(library: Path, launchers: list[Launcher], work: Path, deadline: float) -> None:
    """Refuse a library that does not export each launcher under its plain C name."""
    nm = shutil.which("nm")
    if nm is None:
        return
    listed = _run([nm, "-D", "--defined-only", str(library)], work, deadline)
    symbols = {line.split()[-1].split("@")[0] for line in listed.output.splitlines() if line.split()}
    for launcher in launchers:
        if launcher.name in symbols:
            continue
        mangled = f"_Z{len(launcher.name)}{launcher.name}"
        why = (
            "it has C++ linkage" if any(symbol.startswith(mangled) for symbol in symbols) else "it is not defined there"
        )
        raise _CompileError(
            f"{launcher.source} does not export {launcher.name}: {why}. "
            f'Write: extern "C" int {launcher.name}(..., void* stream)'
        )


def _describe(toolchain: Toolchain | None) -> str:
    if toolchain is None:
        return ""
    return json.dumps([toolchain.identity, toolchain.compile_flags, toolchain.link_flags])


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join((str(VERSION), *parts)).encode()).hexdigest()


def _publish(aside: Path, folder: Path) -> None:
    """Move a finished folder to its place in the cache, whoever else does the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside.chmod(0o755)  # the runner may have another user id
    (aside / ".seal").write_text(_fingerprint(aside), encoding="ascii")
    if folder.exists():
        if _intact(folder):
            return
        with contextlib.suppress(OSError):
            folder.rename(Path(tempfile.mkdtemp(prefix="broken-", dir=aside.parent)) / folder.name)
    try:
        aside.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not _intact(folder):
            raise


def _intact(folder: Path) -> bool:
    """Whether a cached folder still holds what was put there: a crash or a Program may have changed it."""
    return _matches(folder / ".seal", lambda: _fingerprint(folder))


def _seal(output: Path, library: Path) -> None:
    seal = output.with_suffix(".seal")
    seal.write_text(_file_digest(output), encoding="ascii")
    output.rename(library)
    seal.rename(library.with_suffix(".seal"))


def _sealed(library: Path) -> bool:
    return _matches(library.with_suffix(".seal"), lambda: _file_digest(library))


def _matches(seal: Path, compute: Callable[[], str]) -> bool:
    try:
        return seal.read_text(encoding="ascii") == compute()
    except (OSError, UnicodeDecodeError):
        return False


def _fingerprint(folder: Path) -> str:
    h = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and "__pycache__" not in relative.parts and path.name != ".seal":
            h.update(f"{relative}\0{_file_digest(path)}\0".encode())
    return h.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
