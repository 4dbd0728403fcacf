"""A small reader of ELF files: sections, symbols, relocations and dynamic entries of 64-bit little-endian objects.

It reads what a compiler wrote from untrusted sources, so every offset is checked and a damaged file raises ElfError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_DYNSYM, SHT_INIT_ARRAY, SHT_PREINIT_ARRAY = 2, 4, 6, 11, 14, 16
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STT_FUNC, STT_SECTION, STT_GNU_IFUNC = 2, 3, 10
DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_TEXTREL = 1, 15, 29, 22
SHN_UNDEF, SHN_RESERVED = 0, 0xFF00

MAX_BYTES = 1 << 30
MAX_SECTIONS = 100_000


class ElfError(ValueError):
    """The file is not an ELF file that this reader understands."""


@dataclass(frozen=True)
class Section:
    """One section header."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True)
class Symbol:
    """One symbol; ``section`` is an index into the sections, SHN_UNDEF for what is imported."""

    name: str
    kind: int
    binding: int
    visibility: int
    section: int
    value: int

    @property
    def defined(self) -> bool:
        """Whether it is in one of the file's own sections."""
        return SHN_UNDEF < self.section < SHN_RESERVED


@dataclass(frozen=True)
class Relocation:
    """One entry of a RELA section: where it applies, the symbol's index and the addend."""

    offset: int
    symbol: int
    addend: int


class Elf:
    """An object file or a shared library."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 64 or len(data) > MAX_BYTES or data[:4] != b"\x7fELF" or data[4] != 2 or data[5] != 1:
            raise ElfError("not a 64-bit little-endian ELF file")
        self._data = data
        (offset,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        if size != 64 or count > MAX_SECTIONS or offset + size * count > len(data):
            raise ElfError("its section table lies outside the file")
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, offset + 64 * index) for index in range(count)]
        if names >= count:
            raise ElfError("it has no section names")
        table = self._bytes(raw[names][4], raw[names][5])
        self.sections = [
            Section(_text(table, entry[0]), entry[1], entry[2], entry[4], entry[5], entry[6], entry[7]) for entry in raw
        ]

    @classmethod
    def read(cls, path: Path) -> Elf:
        """The file at ``path``. Raises ElfError or OSError."""
        return cls(path.read_bytes())

    @cached_property
    def symbols(self) -> list[Symbol]:
        """The full symbol table: of an object all names, of a stripped library none."""
        return self._symbols(SHT_SYMTAB)

    @cached_property
    def dynamic_symbols(self) -> list[Symbol]:
        """What a library imports and exports."""
        return self._symbols(SHT_DYNSYM)

    def relocations(self, section: int) -> list[Relocation]:
        """What is filled into a section when it is linked or loaded."""
        found: list[Relocation] = []
        for each in self.sections:
            if each.kind == SHT_RELA and each.info == section:
                body = self._bytes(each.offset, each.size)
                for offset, info, addend in struct.iter_unpack("<QQq", body[: len(body) // 24 * 24]):
                    found.append(Relocation(offset, info >> 32, addend))
        return found

    def strings(self) -> frozenset[str]:
        """Constant strings of an object, from its sections ``.rodata.str*``."""
        found: set[str] = set()
        for section in self.sections:
            if section.name.startswith(".rodata.str"):
                body = self._bytes(section.offset, section.size)
                found.update(piece.decode("utf-8", errors="replace") for piece in body.split(b"\0") if piece)
        return frozenset(found)

    def dynamic(self, tag: int) -> list[str]:
        """The strings of a library's dynamic entries with a tag, such as DT_NEEDED."""
        return [self._dynamic_text(value, section) for kind, value, section in self._dynamic() if kind == tag]

    def has_dynamic(self, tag: int) -> bool:
        """Whether a library has a dynamic entry with this tag."""
        return any(kind == tag for kind, _, _ in self._dynamic())

    def _dynamic(self) -> Iterator[tuple[int, int, Section]]:
        for section in self.sections:
            if section.kind == SHT_DYNAMIC:
                body = self._bytes(section.offset, section.size)
                for tag, value in struct.iter_unpack("<qQ", body[: len(body) // 16 * 16]):
                    if tag == 0:
                        break
                    yield tag, value, section

    def _dynamic_text(self, offset: int, section: Section) -> str:
        strings = self._linked(section)
        return _text(self._bytes(strings.offset, strings.size), offset)

    def _symbols(self, kind: int) -> list[Symbol]:
        found: list[Symbol] = []
        for section in self.sections:
            if section.kind != kind:
                continue
            strings = self._linked(section)
            names = self._bytes(strings.offset, strings.size)
            body = self._bytes(section.offset, section.size)
            for name, info, other, index, value, _ in struct.iter_unpack("<IBBHQQ", body[: len(body) // 24 * 24]):
                found.append(Symbol(_text(names, name), info & 15, info >> 4, other & 3, index, value))
        return found

    def _linked(self, section: Section) -> Section:
        if section.link >= len(self.sections):
            raise ElfError(f"section {section.name} names strings that are not there")
        return self.sections[section.link]

    def _bytes(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise ElfError("a section lies outside the file")
        return self._data[offset : offset + size]


def _text(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset >= len(table) or end < 0:
        return ""
    return table[offset:end].decode("utf-8", errors="replace")
