"""A small reader of 64-bit little-endian ELF files: sections, symbols, relocations. Bounds-checked, nothing is run."""

import functools
import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"\x7fELF"
CLASS_64, LITTLE_ENDIAN = 2, 1
MAX_SECTIONS = 4096
MAX_NAME = 4096  # bytes: a kernel's name spells out the types of all its tensors
SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_INIT, SHT_FINI, SHT_PREINIT = 2, 4, 8, 9, 14, 15, 16
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 0x1, 0x2, 0x4, 0x400
SHN_UNDEF = 0
STB_LOCAL, STT_TLS, STT_GNU_IFUNC = 0, 6, 10


class ElfError(ValueError):
    """Not a well-formed ELF file of the expected kind."""


class Section(NamedTuple):
    number: int
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


class Symbol(NamedTuple):
    name: str
    binding: int
    type: int
    section: int  # 0: undefined
    value: int


class Relocation(NamedTuple):
    offset: int
    symbol: int  # index in the symbol table
    addend: int


class Elf:
    """One ELF image, which may be followed by other bytes. Raises ElfError."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 64 or data[:4] != MAGIC or data[4] != CLASS_64 or data[5] != LITTLE_ENDIAN:
            raise ElfError("not a 64-bit little-endian ELF file")
        self.data = data
        self.abi_version = data[8]
        self.type, self.machine = struct.unpack_from("<HH", data, 16)
        programs, sections = struct.unpack_from("<QQ", data, 32)
        (self.flags,) = struct.unpack_from("<I", data, 48)
        entry, count = struct.unpack_from("<HH", data, 54)
        section_entry, number, names = struct.unpack_from("<HHH", data, 58)
        if section_entry != 64 or not 0 < number <= MAX_SECTIONS or sections + 64 * number > len(data):
            raise ElfError("its section table is broken")
        raw = list(struct.iter_unpack("<IIQQQQIIQQ", data[sections : sections + 64 * number]))
        if names >= number:
            raise ElfError("its section names are missing")
        strings = self._slice(raw[names][4], raw[names][5])
        self.sections = tuple(
            Section(i, _string(strings, r[0]), r[1], r[2], r[4], r[5], r[6], r[7]) for i, r in enumerate(raw)
        )
        if sum(s.size for s in self.sections if s.type != SHT_NOBITS) > len(data):  # each byte is read for one of them
            raise ElfError("its sections overlap")
        ends = [s.offset + s.size for s in self.sections if s.type != SHT_NOBITS]
        self.size = max([*ends, sections + 64 * number, programs + entry * count if programs else 0])
        if self.size > len(data):
            raise ElfError("it is truncated")

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise ElfError("a section lies outside the file")
        return self.data[offset : offset + size]

    def content(self, section: Section) -> bytes:
        """Empty for sections without bits in the file."""
        return b"" if section.type == SHT_NOBITS else self._slice(section.offset, section.size)

    def section(self, name: str) -> Section | None:
        return next((s for s in self.sections if s.name == name), None)

    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols of the (only) symbol table, the null symbol included, so that indices fit."""
        return self._symbols

    @functools.cached_property
    def _symbols(self) -> tuple[Symbol, ...]:
        tables = [s for s in self.sections if s.type == SHT_SYMTAB]
        if len(tables) != 1 or tables[0].link >= len(self.sections):
            raise ElfError(f"it has {len(tables)} symbol tables, expected one")
        strings, table = self.content(self.sections[tables[0].link]), self.content(tables[0])
        out = []
        for name, info, _, section, value in struct.iter_unpack("<IBBHQ8x", table[: len(table) // 24 * 24]):
            out.append(Symbol(_string(strings, name), info >> 4, info & 15, section, value))
        return tuple(out)

    def relocations(self, section: Section) -> Iterator[Relocation]:
        """Relocations (with addend) that apply to `section`."""
        for table in self.sections:
            if table.type == SHT_RELA and table.info == section.number:
                data = self.content(table)
                for where, info, addend in struct.iter_unpack("<QQq", data[: len(data) // 24 * 24]):
                    yield Relocation(where, info >> 32, addend)


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset, offset + MAX_NAME + 1)
    if offset > len(table) or end < 0:
        raise ElfError("a name lies outside its string table, or is too long")
    return table[offset:end].decode("utf-8", "replace")
