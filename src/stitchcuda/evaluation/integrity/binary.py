"""The build layer's look at what the compiler made: what an object asks of the system, what it runs when it is loaded,
whose names it takes, and which kernels it holds.

The Program's objects are read before they are linked, so that what the static CUDA runtime needs (it opens files and
loads libraries itself) is not held against the Program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stitchcuda.evaluation.integrity import elf
from stitchcuda.evaluation.integrity.elf import Elf, ElfError, Symbol
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.symbols import IMPORTS, INTERPOSED, INTERPOSED_PREFIXES

_OWN_NEEDS = frozenset({"atexit"})
"""Imports that nvcc's own host code brings."""

_FAMILIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"_ZNSt1(4basic_[io]fstream|3basic_fstream|3basic_filebuf)|_ZNSt10filesystem"), "file_access"),
    (re.compile(r"_ZNSt6thread15_M_start_thread"), "background_work"),
    (re.compile(r"_ZNSt6chrono"), "reads_clock"),
    (re.compile(r"cupti[A-Z]"), "replaces_measuring"),
    (re.compile(r"cu(da)?Ipc[A-Z]"), "shares_memory"),
    (re.compile(r"_?Py[A-Z_]"), "dynamic_code"),
)
_STREAMS = re.compile(r"(cudaStreamCreate|cuStreamCreate)\w*")
_JOINS = re.compile(
    r"(cudaStreamWaitEvent|cudaStreamSynchronize|cudaDeviceSynchronize|cudaEventSynchronize|cuStreamWaitEvent"
    r"|cuStreamSynchronize|cuCtxSynchronize)\w*"
)
_INITIALISERS = re.compile(
    r"_sub_I_\d+|asan\.|_GLOBAL__(sub_)?I_|_ZL\d+__sti____cudaRegisterAll|__sti____cudaRegisterAll|frame_dummy"
)
_LOAD_CODE = (".init", ".fini")
"""Sections whose code the linker strings together into functions that the loader calls."""
_STUB = re.compile(r"(\d+)__device_stub_(?=_)")
_WRITERS = frozenset({"write", "pwrite", "pwrite64", "writev", "send", "sendmsg"})
_PROBES = frozenset({"fcntl", "fcntl64", "dup", "poll", "readlink", "opendir", "fstat"})
_OPENERS = frozenset({"open", "open64", "openat", "creat", "pipe", "pipe2", "memfd_create", "socket", "mkstemp"})
_SIMPLE = re.compile(r"_ZL?(\d+)(.+)")
_LIBRARIES = re.compile(
    r"(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|ld-linux[\w-]*|libgomp(-\w+)?|libomp|libcuda|libcudart"
    r"|libcublas|libcublasLt|libasan|libubsan)\.so(\.\d+)*"
)


def object_hits(objects: Mapping[Path, str]) -> list[Hit]:
    """Hits in objects before they are linked, each named by the source it was compiled from."""
    hits: list[Hit] = []
    for path, source in objects.items():
        try:
            hits += _Object(Elf.read(path), source).run()
        except ElfError as error:
            hits.append(Hit("odd_object", source, 0, f"its object cannot be read: {error}"))
    return hits


def library_hits(library: Path) -> list[Hit]:
    """Hits in the linked library: what it loads with it."""
    try:
        file = Elf.read(library)
        hits = [
            Hit("odd_object", "library", 0, f"loads {name}")
            for name in file.dynamic(elf.DT_NEEDED)
            if not _LIBRARIES.fullmatch(name)
        ]
        for tag in (elf.DT_RPATH, elf.DT_RUNPATH):
            hits += [Hit("odd_object", "library", 0, f"searches {path}") for path in file.dynamic(tag)]
        if file.has_dynamic(elf.DT_TEXTREL):
            hits.append(Hit("odd_object", "library", 0, "its code is changed when it is loaded"))
        return hits
    except ElfError as error:
        return [Hit("odd_object", "library", 0, f"it cannot be read: {error}")]


def exported(library: Path) -> frozenset[str]:
    """Functions that a library exports by name. Raises ElfError or OSError."""
    return frozenset(
        symbol.name
        for symbol in Elf.read(library).dynamic_symbols
        if symbol.defined and symbol.binding != elf.STB_LOCAL and symbol.name
    )


def kernel_names(objects: Mapping[Path, str]) -> tuple[str, ...]:
    """Names of the kernels that objects launch, as their cubins have them: mangled, unless they have C linkage; sorted.

    nvcc writes a host function ``__device_stub__`` for each kernel, and registers the kernel's name as a string.
    """
    found: set[str] = set()
    for path in objects:
        try:
            file = Elf.read(path)
            registered = file.strings()
            stubs = {name for symbol in file.symbols for name in _stubbed(symbol.name)}
        except ElfError:
            continue
        for mangled in stubs:
            plain = _SIMPLE.match(mangled)
            name = plain[2][: int(plain[1])] if plain else ""
            found.add(name if mangled not in registered and name in registered else mangled)
    return tuple(sorted(found))


def _stubbed(symbol: str) -> Iterator[str]:
    for match in _STUB.finditer(symbol):
        name = symbol[match.end() : match.end() + int(match[1]) - len("__device_stub_")]
        yield name if name.startswith("_Z") else name.removeprefix("_")


class _Object:
    def __init__(self, file: Elf, source: str) -> None:
        self.file, self.source = file, source

    def hit(self, rule: str, what: str) -> Hit:
        return Hit(rule, self.source, 0, what[:120])

    def run(self) -> Iterator[Hit]:
        imports = {symbol.name for symbol in self.file.symbols if symbol.section == elf.SHN_UNDEF and symbol.name}
        for name in sorted(imports - _OWN_NEEDS):
            if (rule := _rule(name)) is not None:
                yield self.hit(rule, f"needs {name}")
        streams = sorted(name for name in imports if _STREAMS.fullmatch(name))
        if streams and not any(_JOINS.fullmatch(name) for name in imports):
            yield self.hit("side_stream", f"needs {streams[0]} and nothing that waits")
        if imports & _WRITERS and imports & _PROBES and not imports & _OPENERS:
            yield self.hit("writes_descriptors", f"needs {min(imports & _WRITERS)} and nothing that opens")
        for symbol in self.file.symbols:
            yield from self._definition(symbol)
        for index, section in enumerate(self.file.sections):
            if section.kind == elf.SHT_PREINIT_ARRAY:
                yield self.hit("static_initialiser", section.name)
            elif section.kind == elf.SHT_INIT_ARRAY or section.name.startswith((".init_array", ".ctors")):
                yield from self._initialisers(index)
            elif section.name in _LOAD_CODE and section.size:
                yield self.hit("static_initialiser", f"code in {section.name}")
            both = elf.SHF_WRITE | elf.SHF_EXECINSTR
            if section.flags & both == both:
                yield self.hit("odd_object", f"section {section.name} is writable code")

    def _definition(self, symbol: Symbol) -> Iterator[Hit]:
        name = symbol.name
        if symbol.defined and symbol.kind == elf.STT_GNU_IFUNC:
            # Of ``target_clones`` the compiler writes the resolver itself.
            written = any(each.endswith(".resolver") for each in self._functions(symbol.section, symbol.value))
            what = f"{name} is chosen by code that runs at load time"
            yield self.hit("odd_object" if written else "static_initialiser", what)
        if not symbol.defined or symbol.binding == elf.STB_LOCAL:
            return
        if name in INTERPOSED or (symbol.binding == elf.STB_GLOBAL and name.startswith(INTERPOSED_PREFIXES)):
            yield self.hit("interposes", f"defines {name}")

    def _initialisers(self, index: int) -> Iterator[Hit]:
        relocations = self.file.relocations(index)
        if not relocations and self.file.sections[index].size and self.file.sections[index].kind != elf.SHT_RELA:
            yield self.hit("static_initialiser", f"{self.file.sections[index].name} holds plain addresses")
        for relocation in relocations:
            name = self._target(relocation.symbol, relocation.addend)
            if not _INITIALISERS.match(name):
                yield self.hit("static_initialiser", name or "a function without a name")

    def _target(self, number: int, addend: int) -> str:
        """The name of the function that a relocation points to."""
        if number >= len(self.file.symbols):
            return ""
        symbol = self.file.symbols[number]
        if symbol.kind != elf.STT_SECTION:
            return symbol.name
        return next(self._functions(symbol.section, addend), "")

    def _functions(self, section: int, value: int) -> Iterator[str]:
        """Names of the functions that begin at a place."""
        for each in self.file.symbols:
            if each.kind == elf.STT_FUNC and (each.section, each.value) == (section, value):
                yield each.name


def _rule(name: str) -> str | None:
    """The rule that an import fires; glibc's checked variants (``__read_chk``) count as what they check."""
    plain = name.removeprefix("__").removesuffix("_chk") if name.endswith("_chk") else name
    if (rule := IMPORTS.get(plain)) is not None:
        return rule
    return next((rule for pattern, rule in _FAMILIES if pattern.match(name)), None)
