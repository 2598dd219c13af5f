"""ELF files, cubins, fat binaries and objects for tests, written byte by byte. They hold nothing that could run.

File(sections, ...).made()     one ELF file, whose header may lie
image(...), fat(...)           a cubin with one kernel; a fat binary round cubins
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from kgen.gates.audit.elf import Symbol

PROGBITS, SYMTAB, STRTAB, RELA, NOBITS, REL, INIT, FINI, PREINIT = 1, 2, 3, 4, 8, 9, 14, 15, 16
WRITE, ALLOC, EXEC, TLS = 1, 2, 4, 0x400
LOCAL, GLOBAL, WEAK = 0, 1, 2
FUNC = 2


@dataclass(frozen=True)
class Sec:
    name: str
    data: bytes = b""
    type: int = PROGBITS
    flags: int = 0
    link: int = 0
    info: int = 0
    size: int = -1  # where it is not that of the data

    @property
    def bytes_(self) -> int:
        return len(self.data) if self.size < 0 else self.size


@dataclass(frozen=True)
class File:
    """An ELF file: the null section, these, and the names of all; then the section table."""

    sections: tuple[Sec, ...] = ()
    type: int = 1
    machine: int = 62
    abi: int = 0
    flags: int = 0
    programs: tuple[int, int, int] = (0, 0, 0)  # offset, bytes of an entry, entries
    header: dict[str, int] = field(default_factory=dict)  # fields that lie

    def made(self, head: bytes = b"\x7fELF\x02\x01") -> bytes:
        names, starts = b"\0", []
        for each in (*self.sections, Sec(".shstrtab")):
            starts.append(len(names))
            names += each.name.encode() + b"\0"
        body, rows = bytearray(64), [struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
        for start, each in zip(starts, (*self.sections, Sec(".shstrtab", names, STRTAB)), strict=True):
            at, size = len(body), each.bytes_
            rows.append(
                struct.pack("<IIQQQQIIQQ", start, each.type, each.flags, 0, at, size, each.link, each.info, 1, 0)
            )
            body += b"" if each.type == NOBITS else each.data
        told = {"table": len(body), "entry": 64, "number": len(rows), "names": len(rows) - 1, **self.header}
        body += b"".join(rows)
        body[:16] = head + b"\1\0" + bytes([self.abi]) + bytes(15 - len(head) - 2)
        struct.pack_into("<HHI", body, 16, self.type, self.machine, 1)
        struct.pack_into("<QQQ", body, 24, 0, self.programs[0], told["table"])
        struct.pack_into(
            "<IHHHHHH", body, 48, self.flags, 64, *self.programs[1:], told["entry"], told["number"], told["names"]
        )
        return bytes(body)


def symbols(*found: Symbol, link: int) -> tuple[Sec, Sec]:
    """The symbol table, whose names are in section `link`, and the names."""
    table, names = bytes(24), b"\0"
    for s in found:
        table += struct.pack("<IBBHQQ", len(names), s.binding << 4 | s.type, 0, s.section, s.value, 0)
        names += s.name.encode() + b"\0"
    return Sec(".symtab", table, SYMTAB, link=link), Sec(".strtab", names, STRTAB)


def relocation(symbol: int, addend: int = 0, offset: int = 0) -> bytes:
    return struct.pack("<QQq", offset, symbol << 32 | 1, addend)


KERNEL = "kernel_1"


def sized(attribute: int, payload: bytes) -> bytes:
    return struct.pack("<BBH", 4, attribute, len(payload)) + payload


def plain(attribute: int, value: int) -> bytes:
    return struct.pack("<BBH", 3, attribute, value)


def parameter(ordinal: int, size: int) -> bytes:
    return sized(0x17, struct.pack("<IHHI", 0, ordinal, 8 * ordinal, size << 18 | 0x1F00))


COMMON = sized(0x2F, struct.pack("<II", 1, 72)) + plain(0x37, 3) + sized(0x11, struct.pack("<II", 1, 24))
OWN = plain(0x1B, 255) + sized(0x05, struct.pack("<III", 64, 3, 2)) + parameter(1, 4) + parameter(0, 8)


def image(
    *more: Sec,
    common: bytes = COMMON,
    own: bytes = OWN,
    name: str = KERNEL,
    kinds: Sequence[str] = ("common", "text", "info"),
    **header: int,
) -> bytes:
    """A cubin with one kernel."""
    table, names = symbols(Symbol(name, 1, FUNC, 4, 0), link=2)
    parts = {
        "common": Sec(".nv.info", common),
        "text": Sec(f".text.{name}", b"code" * 8, flags=ALLOC | EXEC),
        "info": Sec(f".nv.info.{name}", own),
    }
    fields = {"type": 2, "machine": 190, "abi": 7, "flags": 0x5A0000 | 0x800 | 90, **header}
    return File((table, names, *(parts[k] for k in kinds), *more), **fields).made()  # type: ignore[arg-type]


def fat(*cubins_: bytes, version: int = 1, header: int = 16, kind: int = 2, skip: int = 64, tail: bytes = b"") -> bytes:
    entries = b"".join(
        struct.pack("<HHIQ", kind, 0, skip, len(c + tail)) + bytes(max(0, skip - 16)) + c + tail for c in cubins_
    )
    return struct.pack("<IHHQ", 0xBA55ED50, version, header, len(entries)) + entries
