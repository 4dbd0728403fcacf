"""A Program's native sources to one shared library: compiled in the jail, looked at, linked, and kept in the cache
with what was seen.

The compilers are the only processes that read the sources, and nothing they make is loaded here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation import dependencies
from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.build_errors import digest
from stitchcuda.evaluation.build_tools import Toolchain, installed_in
from stitchcuda.evaluation.integrity import binary, sass
from stitchcuda.evaluation.integrity.elf import ElfError
from stitchcuda.evaluation.integrity.rules import Hit, findings
from stitchcuda.evaluation.integrity.static_native import native_macros, numeric_options, outside_files
from stitchcuda.evaluation.jail import Jail, jail
from stitchcuda.evaluation.jail_entry import SETUP_FAILED
from stitchcuda.evaluation.model import Finding
from stitchcuda.program.flags import is_native, native_sources
from stitchcuda.program.model import Launcher, Manifest, Program
from stitchcuda.task.model import Precision

LIBRARY, REPORT = "library.so", "report.json"
"""Files of an entry in the cache."""

OUTPUT_LIMIT = 2**20
"""Bytes of a compiler's output that are read."""

LISTING_LIMIT = 2**26
"""Bytes of a SASS listing that are read."""

LISTING_SECONDS = 30.0
"""Wall time for the SASS listing, seconds; without it nothing is lost but the information."""

FULL_DISK = 1 << 16
"""A failed compilation with fewer bytes than these left is the disk's fault."""

_OUTSIDE = re.compile(r"(?m)(?:error: |file not found: )((?:/|(?:\.\./)+)[^:\n]*)(?=: No such file|$)")
"""A compiler's complaint that a file outside the Program's folder is not there, which the jail makes true."""


class CompileError(Exception):
    """The Program does not compile, or its build is refused; the message is for its author."""

    def __init__(self, message: str, found: tuple[Finding, ...] = ()) -> None:
        super().__init__(message)
        self.findings = found


class Report(BaseModel):
    """What was seen while a library was made; kept beside it."""

    model_config = ConfigDict(frozen=True)

    findings: tuple[Finding, ...] = ()
    kernels: tuple[str, ...] = Field(default=(), description="mangled names of the kernels that it launches")
    instructions: dict[str, int] = Field(
        default_factory=dict, description="matrix instructions in its SASS; empty without cuobjdump"
    )
    confinement: str = Field(default="", description="how the compilers were confined")
    extensions: str = Field(default="", description="whose headers ``load_inline`` was built against, and why")


@dataclass(frozen=True)
class Library:
    """A shared library in the cache; ``compiled`` is False when it was found there."""

    path: Path
    report: Report
    compiled: bool


def library_key(program: Program, manifest: Manifest, toolchain: Toolchain, precision: str, version: int) -> str:
    """Name of the library that these sources give with this toolchain."""
    names = sorted(launcher.name for launcher in manifest.launchers)
    parts = (str(version), json.dumps([_native(program), names], sort_keys=True), precision, toolchain.description)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find_library(cache: BuildCache, key: str) -> Library | None:
    """The library in the cache, unless it is not there or damaged."""
    folder = cache.find("libraries", key)
    return _library(folder, compiled=False) if folder is not None else None


def _library(folder: Path, *, compiled: bool) -> Library | None:
    try:
        report = Report.model_validate_json((folder / REPORT).read_bytes())
    except (OSError, ValueError):
        return None
    return Library(folder / LIBRARY, report, compiled)


def make_library(
    program: Program,
    manifest: Manifest,
    toolchain: Toolchain,
    *,
    cache: BuildCache,
    key: str,
    precision: Precision,
    deadline: float,
) -> Library:
    """Compile, look, link and keep. ``deadline`` is in time.monotonic() seconds.

    Raises CompileError for what its author must change, InfrastructureError when a tool dies, OSError.
    """
    native = _native(program)
    _refuse_sources(native, precision)
    with cache.aside(key[:12]) as work:
        for path, text in native.items():
            (work / "src" / path).parent.mkdir(parents=True, exist_ok=True)
            (work / "src" / path).write_text(text, encoding="utf-8")
        sources = native_sources(program.files, manifest.target)
        making = Making(work, native, toolchain, deadline)
        output, report = making.run(sources, manifest.launchers, precision)
        # The compilers' user may still own what is in the work folder: the entry is made of copies.
        with cache.aside(f"kept-{key[:12]}") as kept:
            shutil.copyfile(output, kept / LIBRARY)
            (kept / REPORT).write_text(report.model_dump_json(), encoding="utf-8")
            folder = cache.publish("libraries", key, kept)
    return Library(folder / LIBRARY, report, compiled=True)


def _native(program: Program) -> dict[str, str]:
    """Files that compilers may read: everything but Python and prose."""
    return {path: text for path, text in program.files.items() if not path.endswith((".py", ".md", ".txt"))}


def _refuse_sources(native: dict[str, str], precision: Precision) -> None:
    """Refuse sources that lead out of the Program's folder, and sources of the fp32 class that switch inexact
    arithmetic on from inside, as the command line does not."""
    texts = {path: text for path, text in native.items() if is_native(path)}
    macros = native_macros(texts.values())
    outside = [hit for path, text in texts.items() for hit in outside_files(path, text, macros)]
    if outside:
        raise CompileError(
            f"{outside[0].path}:{outside[0].line}: {outside[0].what} leads out of the program's folder; include its "
            "own files or system headers only",
            tuple(findings(outside, "build")),
        )
    if precision != "fp32":
        return
    hits = [hit for path, text in texts.items() for hit in numeric_options(path, text, macros)]
    if hits:
        raise CompileError(
            f"{hits[0].path}:{hits[0].line}: {hits[0].what} changes how numbers are rounded, which precision class "
            "fp32 does not allow; remove it",
            tuple(findings(hits, "build")),
        )


@dataclass(frozen=True)
class _Result:
    code: int | None
    output: str


class Making:
    """One library in the making, in a folder of its own."""

    def __init__(self, work: Path, native: dict[str, str], toolchain: Toolchain, deadline: float) -> None:
        self.work, self.native, self.toolchain, self.deadline = work, native, toolchain, deadline
        self.jail = jail() if _works_confined(toolchain) is not False else Jail("", ("confinement of compilers",))

    def run(self, sources: list[str], launchers: list[Launcher], precision: Precision) -> tuple[Path, Report]:
        objects = {self.work / f"{number}.o": source for number, source in enumerate(sources)}
        commands = [self.toolchain.compile(source, str(path)) for path, source in objects.items()]
        # Each command is a process of its own; the threads only wait for them.
        with ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)))) as pool:
            results = list(pool.map(self.command, commands))
        if any(result.code for result in results) and self.jail_is_to_blame():
            return self.run(sources, launchers, precision)
        self._check(results)
        hits = [*self._foreign(objects), *binary.object_hits(objects)]
        self._refuse(hits)
        output = self.work / "library.so"
        self._check([self.command(self.toolchain.link([str(path) for path in objects], str(output)))])
        _check_symbols(output, launchers)
        instructions = self._instructions(output)
        hits += [*binary.library_hits(output), *sass.matrix_hits(instructions, precision)]
        return output, Report(
            findings=tuple(findings(hits, "build")),
            kernels=binary.kernel_names(objects),
            instructions=instructions,
            confinement=self.jail.describe(),
        )

    def command(
        self, argv: list[str], limit: int = OUTPUT_LIMIT, until: float = math.inf, more: tuple[str, ...] = ()
    ) -> _Result:
        """Run a tool in the jail, in its own process group with a scrubbed environment; code None: time was up.

        ``limit`` bounds the bytes read of what it prints, ``more`` are folders that it needs beside the toolchain's.
        """
        deadline, roots = min(until, self.deadline), (*self.toolchain.roots, *more)
        confined = self.jail.command(argv, work=self.work, cwd=self.work / "src", roots=roots)
        # A compiler names its temporary files by its process id, and every jail counts those anew.
        scratch = tempfile.mkdtemp(prefix="tmp-", dir=self.work)
        os.chmod(scratch, 0o777)  # the jail may have another user id; the work folder around it is closed to others
        with tempfile.TemporaryFile(dir=self.work) as log:
            process = subprocess.Popen(
                confined,
                cwd=self.work / "src",
                env=_environment(self.work) | {"TMPDIR": scratch},
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
            if code is not None and self.jail.level and 128 < code <= 128 + signal.SIGRTMAX:
                code = 128 - code
            return _Result(code, log.read(limit).decode(errors="replace"))

    def jail_is_to_blame(self) -> bool:
        """Whether this toolchain works outside the jail only; then the work goes on unconfined, and says so."""
        if not self.jail.level or _works_confined(self.toolchain):
            return False
        source = self.work / "src" / f".smoke{self.toolchain.suffix}"
        source.write_text("#include <cstddef>\nstd::size_t smoke() { return 1; }\n", encoding="utf-8")
        argv = self.toolchain.compile(source.name, str(self.work / "smoke.o"))
        confined = self.command(argv).code == 0
        if not confined:
            kept, self.jail = self.jail, Jail("", ("confinement of compilers (this toolchain does not work in it)",))
            if self.command(argv).code != 0:
                self.jail = kept
                return False
        _note_confined(self.toolchain, confined)
        return not confined

    def _foreign(self, objects: dict[Path, str]) -> list[Hit]:
        """Files that the compiler took in and that are neither the Program's nor a toolkit's."""
        hits = []
        for path, source in objects.items():
            listing = path.with_name(f"{path.name}.d")
            try:
                names = dependencies.listed(listing.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                hits.append(Hit("odd_object", source, 0, "the compiler did not list what it read"))
                continue
            foreign = dependencies.foreign_files(names, self.work / "src", self.toolchain.roots)
            hits += [Hit("includes_files", source, 0, f"reads {name}") for name in foreign]
        return hits

    def _refuse(self, hits: list[Hit]) -> None:
        foreign = [hit for hit in hits if hit.rule == "includes_files"]
        if foreign:
            raise CompileError(
                f"{foreign[0].path} {foreign[0].what}; include the program's own files or system headers only",
                tuple(findings(hits, "build")),
            )

    def _instructions(self, library: Path) -> dict[str, int]:
        """Matrix instructions in the library's SASS; empty on cpu and without cuobjdump."""
        if self.toolchain.suffix != ".cu" or (tool := sass.find_cuobjdump(self.toolchain.roots)) is None:
            return {}
        until = time.monotonic() + LISTING_SECONDS
        listing = self.command([tool, "-sass", str(library)], LISTING_LIMIT, until, (installed_in(tool),))
        return sass.matrix_instructions(listing.output) if listing.code == 0 else {}

    def _check(self, results: list[_Result]) -> None:
        if all(result.code == 0 for result in results):
            return
        output = "\n".join(result.output for result in results if result.code != 0)
        # A compiler cannot even complain where its output goes to the same full disk.
        if "No space left on device" in output or shutil.disk_usage(self.work).free < FULL_DISK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if any(result.code == SETUP_FAILED for result in results) and self.jail.level:
            raise InfrastructureError(f"the compiler could not be confined: {output.strip()[:300]}")
        if any(result.code is None for result in results):
            raise CompileError(
                "compiling took longer than the time limit; use fewer template instances and less unrolling"
            )
        killed = [result.code for result in results if result.code is not None and result.code < 0]
        if killed and not re.search(r"(?i)\berror\b", output):
            name = signal.Signals(-killed[0]).name
            raise InfrastructureError(
                f"{self.toolchain.compiler} was killed by {name}; is there enough memory to compile?"
            )
        hits = [Hit("includes_files", "build", 0, f"asks for {match[1]}") for match in _OUTSIDE.finditer(output)]
        text = output.replace(f"{self.work / 'src'}/", "").replace(f"{self.work}/", "")
        raise CompileError(digest(text, self.native), tuple(findings(hits, "build")))


_CONFINED: dict[str, bool] = {}


def _works_confined(toolchain: Toolchain) -> bool | None:
    """Whether the toolchain is known to work in the jail; None when nothing was tried."""
    return _CONFINED.get(toolchain.compiler)


def _note_confined(toolchain: Toolchain, works: bool) -> None:
    _CONFINED[toolchain.compiler] = works


def _environment(work: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(work),
        "TMPDIR": str(work),
        "LANG": "C",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _check_symbols(library: Path, launchers: list[Launcher]) -> None:
    """Refuse a library that does not export each launcher under its plain C name."""
    try:
        symbols = binary.exported(library)
    except ElfError as error:
        raise CompileError(f"the library that was built cannot be read: {error}") from None
    for launcher in launchers:
        if launcher.name in symbols:
            continue
        mangled = f"_Z{len(launcher.name)}{launcher.name}"
        why = (
            "it has C++ linkage" if any(symbol.startswith(mangled) for symbol in symbols) else "it is not defined there"
        )
        raise CompileError(
            f"{launcher.source} does not export {launcher.name}: {why}. "
            f'Write: extern "C" int {launcher.name}(..., void* stream)'
        )
