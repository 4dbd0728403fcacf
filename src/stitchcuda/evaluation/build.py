"""From a Program's files to a folder that a runner can import: sources compiled, bindings written, all cached.

Nothing of the Program runs here and nothing is loaded: the compiler is the only process that reads it. A
Program without a manifest is only copied; what it compiles on import is the runner's time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.errors import InfrastructureError, ProgramError
from stitchcuda.evaluation.build_errors import cut
from stitchcuda.evaluation.build_tools import Toolchain, cpu_toolchain, cuda_toolchain, sanitized
from stitchcuda.evaluation.library import (
    CompileError,
    Library,
    Report,
    file_digest,
    find_library,
    library_key,
    make_library,
)
from stitchcuda.evaluation.model import Finding
from stitchcuda.program.bindings import render
from stitchcuda.program.files import write_program
from stitchcuda.program.model import Manifest, Program
from stitchcuda.program.validate import validate
from stitchcuda.task.model import Precision, Target

VERSION = 2
"""Part of every cache key; raise it when what is written for equal input changes."""


@dataclass(frozen=True)
class Build:
    """What building a Program gave.

    ``folder`` holds the Program's files, ``bindings.py`` and the library; None unless ``ok``. ``log`` is a
    digest of at most 2,000 characters. ``seconds`` is wall time. ``cached`` says that nothing was compiled.
    ``findings`` are those of the build layer, ``kernels`` the mangled names of the kernels that the library launches,
    ``instructions`` the matrix instructions in its SASS (empty without cuobjdump), and ``confinement`` says how the
    compilers were confined.
    """

    ok: bool
    folder: Path | None
    log: str
    seconds: float
    cached: bool
    findings: tuple[Finding, ...] = ()
    kernels: tuple[str, ...] = ()
    instructions: Mapping[str, int] = field(default_factory=dict)
    confinement: str = ""


def build(
    program: Program,
    target: Target,
    *,
    cache: Path,
    precision: Precision = "fp32",
    timeout_s: float = 300,
    sanitize: bool = False,
) -> Build:
    """Build ``program`` for ``target`` under ``cache``, or find it there.

    Safe with several builders on one cache: everything is written aside and renamed. ``precision`` is part of the
    key: fast-math is off for every class, and sources of the fp32 class may not switch it on from inside either.
    ``timeout_s`` bounds the compilers together. ``sanitize`` builds a cpu library for AddressSanitizer.

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
        cached, folder, report = _build(program, target, cache, precision, start + timeout_s, sanitize)
    except CompileError as error:
        return Build(False, None, cut(str(error)), time.monotonic() - start, False, error.findings)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InfrastructureError(
                f"the disk under {cache} is full; free some space or set STITCHCUDA_CACHE"
            ) from None
        raise InfrastructureError(f"the build cache {cache} cannot be used: {error}") from None
    seconds = time.monotonic() - start
    return Build(
        True,
        folder,
        "",
        seconds,
        cached,
        findings=report.findings,
        kernels=report.kernels,
        instructions=report.instructions,
        confinement=report.confinement,
    )


def _build(
    program: Program, target: Target, cache: Path, precision: Precision, deadline: float, sanitize: bool
) -> tuple[bool, Path, Report]:
    manifest = program.manifest
    toolchain = _toolchain(manifest, target) if manifest is not None else None
    if toolchain is not None and sanitize and target.kind == "cpu":
        toolchain = sanitized(toolchain)
    scratch = cache / "scratch"
    library: Library | None = None
    name = ""
    if manifest is not None and toolchain is not None:
        name = library_key(program, manifest, toolchain, precision, VERSION)
        library = find_library(cache, name)
    key = _key(program.digest, precision, toolchain.description if toolchain is not None else "")
    folder = cache / "programs" / key
    if (manifest is None or library is not None) and _intact(folder):
        return True, folder, library.report if library is not None else Report()
    scratch.mkdir(parents=True, exist_ok=True)
    _sweep(scratch)
    aside = Path(tempfile.mkdtemp(prefix=f"{key[:12]}-", dir=scratch))
    try:
        write_program(program, aside)
        if manifest is not None and toolchain is not None:
            if library is None:
                library = make_library(
                    program, manifest, toolchain, cache=cache, key=name, precision=precision, deadline=deadline
                )
            file = f"kernels_{name[:16]}.so"
            shutil.copyfile(library.path, aside / file)
            (aside / "bindings.py").write_text(render(manifest, file), encoding="utf-8")
        _publish(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if library is None:
        return True, folder, Report()
    return not library.compiled, folder, library.report


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
            h.update(f"{relative}\0{file_digest(path)}\0".encode())
    return h.hexdigest()
