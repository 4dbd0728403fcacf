"""From a Program's files to a folder that a runner can import: sources compiled, bindings written, all cached.

Nothing of the Program runs here and nothing is loaded: the compiler is the only process that reads it. A
Program without a manifest is only copied; what it compiles on import is the runner's time.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.errors import InfrastructureError, ProgramError
from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.build_errors import cut
from stitchcuda.evaluation.build_tools import Toolchain, cpu_toolchain, cuda_toolchain, sanitized
from stitchcuda.evaluation.library import (
    CompileError,
    Library,
    Report,
    find_library,
    library_key,
    make_library,
)
from stitchcuda.evaluation.model import Finding
from stitchcuda.evaluation.torch_build import build_extensions
from stitchcuda.program.bindings import render
from stitchcuda.program.files import write_program
from stitchcuda.program.model import Manifest, Program
from stitchcuda.program.validate import validate
from stitchcuda.task.model import Precision, Target

VERSION = 3
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
    extensions: str = ""


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

    Safe with several builders on one cache (see ``build_cache``); of those that want the same library at once, one
    compiles and the others wait. ``precision`` is part of the
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
        extensions=report.extensions,
    )


def _build(
    program: Program, target: Target, cache: Path, precision: Precision, deadline: float, sanitize: bool
) -> tuple[bool, Path, Report]:
    manifest, store = program.manifest, BuildCache(cache)
    toolchain = _toolchain(manifest, target) if manifest is not None else None
    if toolchain is not None and sanitize and target.kind == "cpu":
        toolchain = sanitized(toolchain)
    library: Library | None = None
    if manifest is not None and toolchain is not None:
        name = library_key(program, manifest, toolchain, precision, VERSION)
        library = find_library(store, name)
        if library is None:
            with store.making(name, deadline, lambda: find_library(store, name) is not None):
                library = find_library(store, name) or make_library(
                    program, manifest, toolchain, cache=store, key=name, precision=precision, deadline=deadline
                )
    extensions = build_extensions(program, target, cache=store, deadline=deadline)
    if extensions.error:
        raise CompileError(extensions.error)
    key = _key(program.digest, precision, toolchain.description if toolchain is not None else "", extensions.key)
    report, cached = extensions.report, extensions.cached
    if library is not None:
        report, cached = library.report, not library.compiled
    folder = store.find("programs", key)
    if folder is not None:
        return cached, folder, report
    with store.aside(key[:12]) as aside:
        write_program(program, aside)
        if manifest is not None and library is not None:
            file = f"kernels_{name[:16]}.so"
            shutil.copyfile(library.path, aside / file)
            (aside / "bindings.py").write_text(render(manifest, file), encoding="utf-8")
        extensions.place(aside)
        return cached and (library is not None or bool(extensions.each)), store.publish("programs", key, aside), report


def _toolchain(manifest: Manifest, target: Target) -> Toolchain:
    if target.kind == "cuda":
        return cuda_toolchain(target.arch, tuple(manifest.libraries))
    return cpu_toolchain(target.arch)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join((str(VERSION), *parts)).encode()).hexdigest()
