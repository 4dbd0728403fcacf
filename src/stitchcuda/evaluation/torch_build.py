"""Extensions of KernelBench-style Programs (``load_inline`` with ``torch/extension.h``), built before a runner starts.

First against our own small headers (``torch_headers/``), which take about as long as native sources. What uses more
than they offer does not compile against them, and is built against PyTorch's. A call whose arguments are only known at
run time is left to the runner. Nothing of the Program runs here; which library belongs to which call is written down
for ``torch_inline``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sysconfig
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.errors import InfrastructureError, ToolMissing
from stitchcuda.evaluation import torch_inline
from stitchcuda.evaluation.build_cache import BuildCache, file_digest
from stitchcuda.evaluation.build_errors import certain_error, digest
from stitchcuda.evaluation.build_tools import Toolchain, arch_number, cpu_toolchain, cuda_toolchain
from stitchcuda.evaluation.integrity import binary
from stitchcuda.evaluation.integrity.rules import Hit, findings
from stitchcuda.evaluation.library import Making, Report
from stitchcuda.evaluation.model import Finding
from stitchcuda.evaluation.torch_calls import InlineCall, inline_calls
from stitchcuda.evaluation.torch_flags import FlagRefused, Flags, checked_flags
from stitchcuda.evaluation.torch_sources import Broken, Refused, Unit, units
from stitchcuda.program.model import Program
from stitchcuda.task.model import Target

VERSION = 2
"""Part of every cache key; raise it when what is made of equal input changes."""

HEADERS = Path(__file__).with_name("torch_headers")

Headers = Literal["own", "torch"]

LIBRARY, REPORT = "library.so", "report.json"


class Made(BaseModel):
    """What building one call gave, kept in the cache: a library, or why there is none."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    log: str = ""
    kernels: tuple[str, ...] = Field(default=(), description="mangled names of the kernels that it launches")
    findings: tuple[Finding, ...] = Field(default=(), description="of the build layer, in objects on our own headers")
    confinement: str = ""


@dataclass(frozen=True)
class Extension:
    """One call of load_inline and what was made for it. ``headers`` is "" where nothing was built; then ``why`` says
    why, or ``error`` holds the compilers' complaint."""

    call: InlineCall
    headers: Headers | Literal[""] = ""
    library: Path | None = None
    made: Made | None = None
    why: str = ""
    error: str = ""
    cached: bool = False


@dataclass(frozen=True)
class Extensions:
    """All calls of a Program."""

    each: tuple[Extension, ...] = ()

    @property
    def report(self) -> Report:
        """What is known of the libraries."""
        made = [extension.made for extension in self.each if extension.made is not None]
        kernels = sorted({name for one in made for name in one.kernels})
        confinement = "; ".join(sorted({one.confinement for one in made}))
        found = tuple(finding for one in made for finding in one.findings)
        return Report(findings=found, kernels=tuple(kernels), confinement=confinement, extensions=self.note)

    @property
    def note(self) -> str:
        """For people: whose headers were used, and why not ours; "" for a Program without such calls."""
        said = []
        for extension in self.each:
            what = {"own": "own headers", "torch": "PyTorch's headers", "": "built when it runs"}[extension.headers]
            if extension.error:
                what = "does not build"
            said.append(f"{what}: {extension.why}" if extension.why else what)
        return "; ".join(dict.fromkeys(said))

    @property
    def error(self) -> str:
        """Why the Program cannot run: a call whose failure nothing catches does not build."""
        return next((each.error for each in self.each if each.error and not each.call.guarded), "")

    @property
    def cached(self) -> bool:
        """Whether nothing was compiled."""
        return all(each.cached for each in self.each)

    @property
    def key(self) -> str:
        """Changes with what is laid into the Program's folder."""
        parts = [f"{each.library and each.library.parent.name}:{each.error}" for each in self.each]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest() if parts else ""

    def place(self, folder: Path) -> None:
        """Lay the libraries and their index into a Program's folder, for the runner."""
        index: dict[str, dict[str, str]] = {}
        for number, extension in enumerate(self.each):
            if extension.call.request is None:
                continue
            entry = {"error": extension.error} if extension.error else {}
            if extension.library is not None:
                entry = {"library": f"{number}.so"}
                (folder / torch_inline.FOLDER).mkdir(exist_ok=True)
                shutil.copyfile(extension.library, folder / torch_inline.FOLDER / entry["library"])
            if entry:
                index[torch_inline.digest(extension.call.request)] = entry
        if index:
            (folder / torch_inline.FOLDER).mkdir(exist_ok=True)
            (folder / torch_inline.FOLDER / torch_inline.INDEX).write_text(json.dumps(index), encoding="utf-8")


def build_extensions(
    program: Program,
    target: Target,
    *,
    cache: BuildCache,
    deadline: float,
    headers: tuple[Headers, ...] = ("own", "torch"),
) -> Extensions:
    """Build what the Program's calls of load_inline ask for; ``deadline`` is in time.monotonic() seconds, ``headers``
    are tried in turn.

    Raises InfrastructureError when a tool dies, and OSError. Without a compiler nothing is built, and it says so.
    """
    calls = inline_calls(program) if program.manifest is None else []
    if not calls:
        return Extensions()
    with ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)))) as pool:
        each = tuple(pool.map(lambda call: _extension(call, target, cache, deadline, headers), calls))
    return Extensions(each)


def _extension(
    call: InlineCall, target: Target, cache: BuildCache, deadline: float, headers: tuple[Headers, ...]
) -> Extension:
    if call.request is None:
        return Extension(call, why=call.problem)
    why, error, cached = "", "", True
    for kind in headers:
        try:
            job = _job(call, target, kind)
        except Broken as reason:
            return Extension(call, error=str(reason), cached=True)
        except (Refused, FlagRefused, ToolMissing) as refusal:
            why, error = why or str(refusal), ""
            continue
        with cache.making(job.key, deadline, lambda key=job.key: cache.find("libraries", key) is not None):  # type: ignore[misc]
            folder = cache.find("libraries", job.key)
            cached = cached and folder is not None
            if folder is None:
                folder = job.make(cache, deadline)
        if folder is None:
            return Extension(call, why=why, error="compiling took longer than the time limit", cached=False)
        made = Made.model_validate_json((folder / REPORT).read_bytes())
        if made.ok:
            return Extension(call, kind, folder / LIBRARY, made, why, cached=cached)
        if kind == "own":
            if certain_error(made.log, {unit.name: unit.text for unit in job.units}):
                return Extension(call, error=made.log, cached=cached)
            why = _reason(made.log)
        else:
            error = made.log
    return Extension(call, why=why, error=error, cached=cached)


@dataclass(frozen=True)
class _Job:
    """One library to make: its translation units, and the command lines."""

    units: tuple[Unit, ...]
    cxx: Toolchain
    cuda: Toolchain | None
    own: bool
    key: str
    needs: tuple[str, ...]

    def make(self, cache: BuildCache, deadline: float) -> Path | None:
        """Compile and link into the cache, also what was learned from a failure; None when time was up."""
        with cache.aside(self.key[:12]) as work:
            (work / "src").mkdir()
            sources = {unit.name: unit.text for unit in self.units}
            for name, text in sources.items():
                (work / "src" / name).write_text(text, encoding="utf-8")
            making = Making(work, sources, self.cuda or self.cxx, deadline)
            objects = {work / f"{unit.name}.o": unit.name for unit in self.units}
            commands = [
                (self.cuda if unit.cuda and self.cuda else self.cxx).compile(unit.name, str(path))
                for unit, path in zip(self.units, objects, strict=True)
            ]
            with ThreadPoolExecutor(max_workers=len(commands)) as pool:
                results = list(pool.map(lambda argv: making.command(argv, more=self.needs), commands))
                if any(result.code for result in results) and making.jail_is_to_blame():
                    results = list(pool.map(lambda argv: making.command(argv, more=self.needs), commands))
            output = work / LIBRARY
            if all(result.code == 0 for result in results):
                link = (self.cuda or self.cxx).link([str(path) for path in objects], str(output))
                results = [making.command(link, more=self.needs)]
            if any(result.code is None for result in results):
                return None
            if any(result.code < 0 for result in results if result.code is not None):
                raise InfrastructureError("a compiler was killed; is there enough memory to compile?")
            ok = all(result.code == 0 for result in results)
            log = "\n".join(result.output for result in results if result.code != 0)
            log = digest(log.replace(f"{work / 'src'}/", "").replace(f"{work}/", ""), sources) if not ok else ""
            made = Made(
                ok=ok,
                log=log,
                kernels=binary.kernel_names(objects) if ok and self.cuda else (),
                findings=tuple(findings(_hits(objects), "build")) if ok and self.own else (),
                confinement=making.jail.describe(),
            )
            with cache.aside(f"kept-{self.key[:12]}") as kept:
                if ok:
                    shutil.copyfile(output, kept / LIBRARY)
                (kept / REPORT).write_text(made.model_dump_json(), encoding="utf-8")
                return cache.publish("libraries", self.key, kept)


def _job(call: InlineCall, target: Target, headers: Headers) -> _Job:
    """What to do for a call. Raises Broken, Refused, FlagRefused, or ToolMissing."""
    wanted = call.request
    assert wanted is not None
    with_cuda = bool(wanted["with_cuda"])
    if with_cuda and target.kind != "cuda":
        raise Refused("it is a CUDA extension, and the task's target is cpu")
    if not wanted["is_python_module"]:
        raise Refused("it is no Python module")
    flags = checked_flags(wanted, arch_number(target.arch) if with_cuda else "")
    parts = units(wanted, call.name, own=headers == "own")
    cxx = cpu_toolchain("native")
    cuda = cuda_toolchain(target.arch) if with_cuda else None
    include, needs = _includes(headers, cuda)
    defines = [f"-DTORCH_EXTENSION_NAME={torch_inline.ENTRY}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    if headers == "own" and with_cuda:
        defines.append("-DSTITCH_CUDA")
    standard = "-std=c++17" if headers == "own" else _torch_standard()
    shared = (
        *defines,
        *(word for path in include for word in ("-I" if headers == "own" else "-isystem", path)),
        standard,
    )
    torch_links = _torch_links(with_cuda) if headers == "torch" else ()
    cxx = replace(
        cxx,
        compile_flags=("-fPIC", "-w", *shared, *(("-O1",) if with_cuda else ()), *flags.cxx),
        link_flags=(*_openmp_links(cxx, flags), *torch_links, *flags.libraries),
    )
    if cuda is not None:
        cuda = replace(
            cuda,
            compile_flags=(*_NVCC, *shared, *_gencode(flags, target.arch), *flags.cuda),
            link_flags=(
                *_gencode(flags, target.arch),
                *("-cudart", "static" if headers == "own" else "shared"),
                *_cublas(parts, cuda),
                *torch_links,
                *flags.libraries,
            ),
        )
    text = json.dumps([[unit.name, unit.text] for unit in parts])
    descriptions = (cxx.description, cuda.description if cuda else "")
    key = hashlib.sha256("\0".join((str(VERSION), headers, _identity(headers), text, *descriptions)).encode())
    return _Job(parts, cxx, cuda, headers == "own", key.hexdigest(), needs)


_NVCC = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
    "-w",
    "-Xcompiler",
    "-fPIC",
)
"""What torch gives nvcc for an extension."""


def _hits(objects: Mapping[Path, str]) -> list[Hit]:
    """What objects ask of the system or do when they are loaded, but for the calls of Python that our headers make."""
    ours = _python_calls()
    entry = f"defines PyInit_{torch_inline.ENTRY}"
    hits = binary.object_hits(objects)
    return [hit for hit in hits if hit.what != entry and hit.what.removeprefix("needs ") not in ours]


@functools.cache
def _python_calls() -> frozenset[str]:
    texts = [path.read_text(encoding="utf-8") for path in HEADERS.rglob("*") if path.is_file()]
    names = {name for text in texts for name in re.findall(r"\b_?Py\w+", text)}
    return frozenset(names | {f"_{name}" for name in names} | _BEHIND_MACROS)


_BEHIND_MACROS = frozenset(
    {"_Py_Dealloc", "_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "PyModule_Create2", "PyCMethod_New"}
    | {"PyBool_Type", "PyFloat_Type", "PyLong_Type", "PyList_Type", "PyTuple_Type", "PyUnicode_Type"}
    | {"PyType_IsSubtype", "_Py_DecRef", "_Py_IncRef", "_PyObject_Vectorcall", "PyVectorcall_Function"}
)
"""What Python's own macros call."""


def _gencode(flags: Flags, arch: str) -> tuple[str, ...]:
    number = flags.arch or re.sub(r"\D", "", arch_number(arch))
    return (f"-gencode=arch=compute_{number},code=sm_{number}",)


def _openmp_links(cxx: Toolchain, flags: Flags) -> tuple[str, ...]:
    """As native libraries: the OpenMP runtime that torch has loaded. Nothing where OpenMP is not asked for."""
    links = [flag for flag in cxx.link_flags if not flag.startswith("-Wl")]
    return tuple(links) if flags.openmp else ()


def _cublas(parts: Iterable[Unit], cuda: Toolchain) -> tuple[str, ...]:
    if not any("cublas" in unit.text for unit in parts):
        return ()
    there = any(Path(root, part, "libcublas.so").exists() for root in cuda.roots for part in ("lib64", "lib"))
    return ("-lcublas",) if there else ()


def _includes(headers: Headers, cuda: Toolchain | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders of headers, and those that the compilers must be able to read beside their own."""
    python = sysconfig.get_paths()["include"]
    mine, more = [str(HEADERS)], [str(HEADERS)]
    if headers == "torch":
        root = _torch_folder()
        mine = [f"{root}/include", f"{root}/include/torch/csrc/api/include"]
        more = [f"{root}/include", f"{root}/lib"]
    toolkit: list[str] = []
    if cuda is not None:
        toolkit = [f"{root}/include" for root in cuda.roots if Path(root, "include", "cuda_runtime.h").exists()][:1]
    return (*mine, *toolkit, python), (*more, python)


def _torch_links(with_cuda: bool) -> tuple[str, ...]:
    """torch's own libraries, which a runner has loaded already."""
    names = ("c10", "torch_cpu", "torch", "torch_python", *(("c10_cuda", "torch_cuda") if with_cuda else ()))
    folder = Path(_torch_folder(), "lib")
    there = [f"-l{name}" for name in names if (folder / f"lib{name}.so").is_file()]
    return (f"-L{folder}", *there)


def _torch_folder() -> str:
    specification = importlib.util.find_spec("torch")
    if specification is None or not specification.submodule_search_locations:
        raise ToolMissing("torch is not installed in this Python")
    return str(next(iter(specification.submodule_search_locations)))


@functools.cache
def _torch_standard() -> str:
    """The C++ standard that this torch compiles extensions with, as its own code says."""
    text = Path(_torch_folder(), "utils", "cpp_extension.py").read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"['\"](-std=c\+\+\d\d)['\"]", text)
    return max(found) if found else "-std=c++17"


@functools.cache
def _identity(headers: Headers) -> str:
    """Changes with the headers' contents, and with Python's ABI."""
    python = str(sysconfig.get_config_var("SOABI"))
    if headers == "torch":
        version = Path(_torch_folder(), "version.py")
        return f"{python} {file_digest(version)}"
    parts = [
        f"{path.relative_to(HEADERS)} {file_digest(path)}" for path in sorted(HEADERS.rglob("*")) if path.is_file()
    ]
    return f"{python} " + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _reason(log: str) -> str:
    """The first complaint in one line."""
    first = next((line for line in log.splitlines() if "error" in line or "undefined" in line), "it does not compile")
    return first.strip()[:160]
