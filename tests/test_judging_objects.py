"""Objects and cubins written by hand, byte by byte: what the ELF reader reads, and every rule of the audit at its edge.

The files hold nothing that could run. Real objects are in test_audit_object.py.
"""

import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from kgen.gates.audit import cubin as cubins
from kgen.gates.audit import object as objects
from kgen.gates.audit.elf import MAX_NAME, MAX_SECTIONS, Elf, ElfError, Relocation, Section, Symbol
from kgen.gates.audit.object import ENTRY, INTERNAL, UNLOAD, AuditError
from kgen.records import sha256_bytes

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


def wrong(data: bytes) -> str:
    with pytest.raises(ElfError) as caught:
        Elf(data).symbols()
    return str(caught.value)


# --- the reader

THREE = (
    Sec(".one", b"abc", flags=6),
    Sec(".two", b"", NOBITS, size=1 << 40),
    *symbols(Symbol("f", 1, 2, 1, 5), link=4),
)


def test_a_file_is_read_as_it_was_written() -> None:
    data = File(THREE, type=1, machine=190, abi=8, flags=0x5A0008).made()
    elf = Elf(data)
    assert (elf.type, elf.machine, elf.abi_version, elf.flags, elf.size) == (1, 190, 8, 0x5A0008, len(data))
    assert elf.sections[1] == Section(1, ".one", PROGBITS, 6, 64, 3, 0, 0)
    assert [s.name for s in elf.sections] == ["", ".one", ".two", ".symtab", ".strtab", ".shstrtab"]
    assert elf.content(elf.sections[1]) == b"abc" and elf.content(elf.sections[2]) == b""
    assert elf.section(".two") == elf.sections[2] and elf.section(".three") is None
    assert elf.symbols() == (Symbol("", 0, 0, 0, 0), Symbol("f", 1, 2, 1, 5))


def test_bytes_behind_a_file_are_not_a_part_of_it() -> None:
    data = File(THREE).made()
    assert Elf(data + b"more").size == len(data)
    table = len(data) - 64 * 6
    assert Elf(File(THREE, programs=(len(data) - 20, 10, 2)).made()).size == len(data)
    assert Elf(File(THREE, programs=(len(data) - 16, 10, 2)).made() + b"1234").size == len(data) + 4
    assert wrong(File(THREE, programs=(len(data) - 19, 10, 2)).made()) == "it is truncated"
    assert Elf(File(THREE, programs=(0, 60000, 60000)).made()).size == len(data), "no programs at all"
    assert table > 64


def test_a_last_section_may_end_the_file_and_not_pass_its_end() -> None:
    """The table may stand before what it tells of."""
    plain = File((Sec(".last", b"x" * 7),)).made()
    at = struct.unpack_from("<Q", plain, 40)[0]
    row = at + 64  # of .last
    for size, fine in ((len(plain) - 64, True), (len(plain) - 63, False)):
        data = bytearray(plain)
        struct.pack_into("<Q", data, row + 32, size)
        struct.pack_into("<Q", data, at + 128 + 32, 0)  # no names, so that sizes do not add up to too much
        struct.pack_into("<I", data, at, 0)
        if fine:
            with pytest.raises(ElfError, match="a name lies outside"):
                Elf(bytes(data))
        struct.pack_into("<Q", data, at + 128 + 32, 17)
        if not fine:
            assert wrong(bytes(data)) in ("it is truncated", "its sections overlap")


def test_sections_that_share_bytes_are_refused_by_the_sum_of_their_sizes() -> None:
    """A file of n bytes whose sections claim n together is read, one more is not."""
    plain = File((Sec(".a", b"x" * 100), Sec(".b", b"y" * 100))).made()
    at = struct.unpack_from("<Q", plain, 40)[0]
    names = struct.unpack_from("<Q", plain, at + 3 * 64 + 32)[0]
    for extra in (0, 1):
        data = bytearray(plain)
        for row, size in ((1, 100), (2, len(plain) - 100 - names + extra)):
            struct.pack_into("<QQ", data, at + row * 64 + 24, 0, size)
        if extra:
            with pytest.raises(ElfError, match="overlap"):
                Elf(bytes(data))
        else:
            assert Elf(bytes(data)).size == len(plain)


@pytest.mark.parametrize("head", [b"\x7fELG\x02\x01", b"\x7fELF\x01\x01", b"\x7fELF\x02\x02"])
def test_other_classes_and_byte_orders_are_refused(head: bytes) -> None:
    assert wrong(File(THREE).made(head)) == "not a 64-bit little-endian ELF file"


@pytest.mark.parametrize("length", [0, 4, 63])
def test_a_header_that_is_cut_is_refused(length: int) -> None:
    assert wrong(File(THREE).made()[:length]) == "not a 64-bit little-endian ELF file"


def test_a_header_alone_has_no_sections() -> None:
    assert wrong(File(THREE, header={"number": 0}).made()[:64]) == "its section table is broken"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"entry": 63}, "its section table is broken"),
        ({"entry": 65}, "its section table is broken"),
        ({"number": 0}, "its section table is broken"),
        ({"number": 7}, "its section table is broken"),
        ({"names": 6}, "its section names are missing"),
        ({"names": 7}, "its section names are missing"),
    ],
)
def test_a_section_table_that_does_not_fit_is_refused(header: dict[str, int], says: str) -> None:
    assert wrong(File(THREE, header=header).made()) == says


def test_as_many_sections_as_allowed_are_read_and_one_more_is_not() -> None:
    many = tuple(Sec("s") for _ in range(MAX_SECTIONS - 2))
    assert len(Elf(File(many).made()).sections) == MAX_SECTIONS
    assert wrong(File((*many, Sec("s"))).made()) == "its section table is broken"


def test_the_names_of_sections_have_to_lie_in_the_file() -> None:
    data = bytearray(File(THREE).made())
    at = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, at + 5 * 64 + 32, len(data))
    assert wrong(bytes(data)) == "a section lies outside the file"


def test_a_name_ends_within_its_table_and_within_its_longest() -> None:
    assert Elf(File((Sec("n" * MAX_NAME),)).made()).sections[1].name == "n" * MAX_NAME
    outside = "a name lies outside its string table, or is too long"
    assert wrong(File((Sec("n" * (MAX_NAME + 1)),)).made()) == outside
    data = bytearray(File((Sec(".x"),)).made())
    struct.pack_into("<I", data, struct.unpack_from("<Q", data, 40)[0] + 64, 5000)
    assert wrong(bytes(data)) == outside
    open_end = (
        Sec(".symtab", bytes(24) + struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0), SYMTAB, link=2),
        Sec(".s", b"abc", STRTAB),
    )
    assert wrong(File(open_end).made()) == outside


def test_there_is_one_symbol_table() -> None:
    table, names = symbols(Symbol("f", 0, 0, 1, 0), link=2)
    assert len(Elf(File((table, names)).made()).symbols()) == 2
    assert wrong(File((names,)).made()) == "it has 0 symbol tables, expected one"
    assert wrong(File((table, names, table)).made()) == "it has 2 symbol tables, expected one"
    assert wrong(File((replace(table, link=4), names)).made()).startswith("it has 1 symbol tables")
    assert wrong(File((replace(table, link=9), names)).made()).startswith("it has 1 symbol tables")


def test_the_rest_of_a_table_is_no_symbol_and_no_relocation() -> None:
    table, names = symbols(Symbol("f", 2, 10, 0xFFF1, 1 << 63), link=2)
    cut = replace(table, data=table.data + bytes(23))
    elf = Elf(File((cut, names)).made())
    assert elf.symbols()[1:] == (Symbol("f", 2, 10, 0xFFF1, 1 << 63),)
    rela = Sec(".rela.x", relocation(7, -3, 16) + relocation(1 << 31, 5) + bytes(23), RELA, info=1)
    other, plain = replace(rela, info=2), replace(rela, type=REL)
    elf = Elf(File((Sec(".x"), rela, other, plain)).made())
    want = [Relocation(16, 7, -3), Relocation(0, 1 << 31, 5)]
    assert list(elf.relocations(elf.sections[1])) == want
    assert list(elf.relocations(elf.sections[2])) == want and not list(elf.relocations(elf.sections[3]))


# --- cubins

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


def not_read(data: bytes) -> str:
    with pytest.raises(ElfError) as caught:
        cubins.read(data)
    return str(caught.value)


def test_the_facts_of_a_kernel_are_those_of_its_sections() -> None:
    shared = Sec(f".nv.shared.{KERNEL}", b"", NOBITS, WRITE | ALLOC, size=1024 + 4096)
    data = image(shared)
    got = cubins.read(data, b"round it")
    (facts,) = got.kernels
    assert (facts.name, facts.registers, facts.stack_bytes, facts.static_smem) == (KERNEL, 72, 24, 4096)
    assert (facts.max_threads, facts.code_sha256) == (384, sha256_bytes(b"code" * 8))
    assert (got.sm, got.accelerated, got.parameters, got.variables) == (90, True, {KERNEL: (8, 4)}, 0)
    assert (got.data, got.image, got.sha256) == (data, b"round it", sha256_bytes(data))


@pytest.mark.parametrize(("abi", "flags", "sm", "accelerated"), [
    (7, 0x800 | 90, 90, True), (7, 90, 90, False), (7, 0x8 | 0x50, 88, False), (7, 0x100 | 90, 90, False),
    (8, 103 << 8 | 0x8, 103, True), (8, 103 << 8, 103, False), (9, 0x100 << 8 | 103 << 8 | 8, 103, True),
    (8, 0x800, 8, False),
])  # fmt: skip
def test_the_architecture_stands_in_the_flags_by_the_version_of_the_abi(
    abi: int, flags: int, sm: int, accelerated: bool
) -> None:
    got = cubins.read(image(abi=abi, flags=flags))
    assert (got.sm, got.accelerated) == (sm, accelerated)
    assert got.is_for(f"sm_{sm}{'a' if accelerated else ''}") and not got.is_for(f"sm_{sm}{'' if accelerated else 'a'}")
    assert not got.is_for(f"sm_{sm + 1}a") and not got.is_for(f"x{sm}") and not got.is_for("")


def test_what_a_kernel_does_not_say_is_nothing() -> None:
    (facts,) = cubins.read(image(common=sized(0x2F, struct.pack("<II", 1, 72)), own=b"")).kernels
    assert (facts.stack_bytes, facts.static_smem, facts.max_threads) == (0, 0, 0)
    little = Sec(f".nv.shared.{KERNEL}", b"", NOBITS, size=1000)
    assert cubins.read(image(little)).kernels[0].static_smem == 0, "less than the system's own part"
    written = Sec(f".nv.shared.{KERNEL}", bytes(5000), PROGBITS)
    assert cubins.read(image(written)).kernels[0].static_smem == 0, "not shared memory but bytes of the file"


def test_a_required_number_of_threads_counts_like_a_highest_one() -> None:
    assert cubins.read(image(own=sized(0x10, struct.pack("<III", 2, 3, 5)))).kernels[0].max_threads == 30
    assert cubins.read(image(own=sized(0x05, struct.pack("<II", 2, 3)))).kernels[0].max_threads == 0
    assert cubins.read(image(own=sized(0x06, struct.pack("<III", 2, 3, 5)))).kernels[0].max_threads == 0
    assert cubins.read(image(own=sized(0x17, bytes(8)))).parameters == {KERNEL: ()}


def test_parameters_are_in_the_order_of_their_numbers() -> None:
    got = cubins.read(image(own=parameter(2, 128) + parameter(0, 8) + parameter(1, 16383)))
    assert got.parameters == {KERNEL: (8, 16383, 128)}


@pytest.mark.parametrize("shift", [-1, 1, 4])
def test_a_section_of_facts_that_does_not_end_with_a_fact_is_broken(shift: int) -> None:
    broken = OWN + sized(0x05, b"1234")[: 8 - 1] if shift < 0 else OWN + bytes(shift)[: 3 if shift == 4 else shift]
    assert not_read(image(own=broken)) == "an .nv.info section is broken"


def test_facts_about_no_symbol_are_left_out() -> None:
    beyond = COMMON + sized(0x11, struct.pack("<II", 2, 999)) + sized(0x2F, struct.pack("<III", 1, 5, 5))
    (facts,) = cubins.read(image(common=beyond)).kernels
    assert (facts.registers, facts.stack_bytes) == (72, 24)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (image(machine=62), "not a cubin"),
        (image(kinds=("common", "info")), "the cubin holds no kernel"),
        (image(kinds=("text", "info")), "the cubin has no .nv.info"),
        (image(kinds=("common", "text")), f"kernel {KERNEL} lacks its facts"),
        (image(common=plain(0x37, 3)), f"kernel {KERNEL} lacks its facts"),
        (image(name="k" * 70, common=b""), f"kernel {'k' * 60} lacks its facts"),
        (image(name="1k"), "'1k' is no name of a kernel"),
        (image(name="a b"), "'a b' is no name of a kernel"),
        (image(name="a b", common=b""), "'a b' is no name of a kernel"),
    ],
)
def test_what_is_no_whole_cubin_is_refused(data: bytes, says: str) -> None:
    assert not_read(data) == says


def test_of_several_kernels_each_has_its_facts() -> None:
    second = (Sec(".text.b", b"other"), Sec(".nv.info.b", parameter(0, 4)))
    table, names = symbols(Symbol("c", 1, FUNC, 4, 0), Symbol("b", 1, FUNC, 6, 0), link=2)
    common = sized(0x2F, struct.pack("<II", 1, 32)) + sized(0x2F, struct.pack("<II", 2, 64))
    parts = (table, names, Sec(".nv.info", common), Sec(".text.c", b"one"), Sec(".nv.info.c", OWN), *second)
    got = cubins.read(File(parts, machine=190, abi=7, flags=90).made())
    assert [(k.name, k.registers, k.code_sha256) for k in got.kernels] == [
        ("b", 64, sha256_bytes(b"other")), ("c", 32, sha256_bytes(b"one")),
    ]  # fmt: skip
    assert got.parameters == {"b": (4,), "c": (8, 4)}


@pytest.mark.parametrize(
    ("section", "counted"),
    [
        (Sec(".nv.global", b"", NOBITS, WRITE | ALLOC, size=12), 12),
        (Sec(".nv.global.init", bytes(8), PROGBITS, WRITE | ALLOC), 8),
        (Sec(".nv.constant3", bytes(8), PROGBITS, ALLOC), 0),
        (Sec(".debug", bytes(8), PROGBITS, WRITE), 0),
        (Sec(f".nv.shared.{KERNEL}", b"", NOBITS, WRITE | ALLOC, size=2048), 0),
        (Sec(f".nv.local.{KERNEL}", b"", NOBITS, WRITE | ALLOC, size=2048), 0),
    ],
)
def test_device_variables_are_what_kernels_can_write_and_what_stays(section: Sec, counted: int) -> None:
    assert cubins.read(image(section)).variables == counted


OBJECT = File((Sec(".text", b"x"),)).made()
PAD = b"between"


def test_every_cubin_in_a_file_is_found_with_what_lies_round_it() -> None:
    one, other = image(), image(flags=90)
    assert cubins.embedded(OBJECT) == []
    assert cubins.embedded(OBJECT + PAD + fat(one)) == [(fat(one), one)]
    both = OBJECT + fat(one) + PAD + fat(other) + PAD
    assert cubins.embedded(both) == [(fat(one), one), (fat(other), other)]
    assert cubins.embedded(OBJECT + fat(one, other)) == [(fat(one, other), one), (fat(one, other), other)]
    assert cubins.embedded(OBJECT + fat(one, tail=b"\0" * 5, skip=16)) == [(fat(one, tail=b"\0" * 5, skip=16), one)]


def hidden(data: bytes) -> str:
    with pytest.raises(ElfError) as caught:
        cubins.embedded(data)
    return str(caught.value)


CUBIN = image()
ELSE = "its fat binary holds something else than a plain cubin"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (OBJECT + CUBIN, "it holds an ELF image outside of its fat binary"),
        (OBJECT + fat(CUBIN) + CUBIN, "it holds an ELF image outside of its fat binary"),
        (OBJECT + fat(CUBIN, tail=CUBIN), "it holds an ELF image outside of its fat binary"),
        (fat(CUBIN), "it holds an ELF image outside of its fat binary"),
        (OBJECT + fat(CUBIN)[:15], "its fat binary is truncated"),
        (OBJECT + fat(CUBIN)[:16], "its fat binary is broken"),
        (OBJECT + fat(CUBIN)[:-1], "its fat binary is broken"),
        (OBJECT + fat(CUBIN, version=2), "its fat binary is broken"),
        (OBJECT + fat(CUBIN, version=0), "its fat binary is broken"),
        (OBJECT + fat(CUBIN, header=17) + b"x", "its fat binary is broken"),
        (OBJECT + fat(CUBIN, header=15), "its fat binary is broken"),
        (OBJECT + fat(CUBIN, kind=1), ELSE),
        (OBJECT + fat(CUBIN, skip=15), ELSE),
        (OBJECT + fat(b"\0" + CUBIN), ELSE),
        (OBJECT + fat(b""), ELSE),
    ],
)
def test_what_else_hides_in_a_file_is_refused(data: bytes, says: str) -> None:
    assert hidden(data) == says


def test_a_fat_binary_that_ends_within_an_entry_is_refused() -> None:
    whole = fat(CUBIN)
    for more, says in ((bytes(15), "its fat binary is broken"), (struct.pack("<HHIQ", 2, 0, 16, 1), ELSE)):
        longer = whole[:8] + struct.pack("<Q", len(whole) - 16 + len(more)) + whole[16:] + more
        assert hidden(OBJECT + longer) == says
    cut = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + len(CUBIN) - 1) + whole[16:-1]
    assert hidden(OBJECT + cut) == ELSE


# --- objects

FINI_AT, SYMBOLS_AT = 3, 5
UNLOADS = Symbol(UNLOAD, LOCAL, FUNC, 1, 16)
ENTERS = Symbol(ENTRY, GLOBAL, FUNC, 1, 0)
PRINTS = Symbol("printf", GLOBAL, 0, 0, 0)
Change = Callable[[list[Sec]], list[Sec]]


def made_object(
    *more: Sec,
    named: Sequence[Symbol] = (UNLOADS, ENTERS, PRINTS),
    fini: Sec | None = None,
    rela: bytes | None = None,
    note: Sec | None = None,
    held: bytes = b"",
    **header: int,
) -> bytes:
    table, names = symbols(*named, link=6)
    parts = (
        Sec(".text", b"code", flags=ALLOC | EXEC),
        Sec(".lrodata", held or fat(CUBIN), flags=ALLOC),
        fini or Sec(".fini_array", bytes(8), FINI, WRITE | ALLOC),
        Sec(".rela.fini_array", relocation(1) if rela is None else rela, RELA, info=FINI_AT, link=SYMBOLS_AT),
        table,
        names,
        note or Sec(".note.GNU-stack"),
        *more,
    )
    fields = {"machine": objects.MACHINES[platform.machine()], **header}
    return File(parts, **fields).made()  # type: ignore[arg-type]


def refused(data: bytes, arch: str = "sm_90a") -> str:
    with pytest.raises(AuditError) as caught:
        objects.check(data, arch)
    return f"{caught.value.code}: {caught.value}"


def test_an_object_that_keeps_every_rule_gives_its_cubin() -> None:
    got = objects.check(made_object(), "sm_90a")
    assert (got.data, got.image) == (CUBIN, fat(CUBIN))
    more = (Sec(".data.rel.ro", bytes(8), flags=WRITE | ALLOC), Sec(".rela.data.rel.ro", b"", RELA), Sec(".ltext"))
    inner = Symbol(f"{INTERNAL}_helper", GLOBAL, FUNC, 1, 0)
    assert objects.check(made_object(*more, named=(UNLOADS, ENTERS, PRINTS, inner)), "sm_90a") == got


@pytest.mark.parametrize(
    ("flags", "arch", "says"),
    [(0x800 | 90, "sm_100a", "sm_90a, claimed is sm_100a"), (90, "sm_90a", "sm_90, claimed is sm_90a")],
)
def test_the_cubin_is_for_the_claimed_architecture(flags: int, arch: str, says: str) -> None:
    assert refused(made_object(held=fat(image(flags=flags))), arch) == f"audit.arch: the cubin is for {says}"


@pytest.mark.parametrize("number", [0, 2])
def test_an_object_holds_one_cubin(number: int) -> None:
    held = fat(*[CUBIN] * number) if number else b"none"
    assert refused(made_object(held=held)) == f"audit.cubins: the object holds {number} cubins, expected one"


@pytest.mark.parametrize("header", [{"type": 2}, {"type": 0}, {"machine": 3}, {"type": 3, "machine": 3}])
def test_what_is_no_relocatable_object_of_this_machine_is_refused(header: dict[str, int]) -> None:
    assert refused(made_object(**header)) == f"audit.elf: not a relocatable object for {platform.machine()}"


@pytest.mark.parametrize(
    "section",
    [
        Sec(".data", bytes(8), INIT), Sec(".data", bytes(8), PREINIT), Sec(".init_array"), Sec(".init"), Sec(".ctors"),
        Sec(".preinit_array"), Sec(".init_array.5", bytes(8), INIT),
    ],
)  # fmt: skip
def test_whatever_would_run_at_load_is_refused(section: Sec) -> None:
    said = f"audit.constructor: section {section.name} would run code when it is loaded"
    assert refused(made_object(section)) == said


AT_EXIT = "audit.constructor: section {} would run unknown code at exit"


@pytest.mark.parametrize(
    "section", [Sec(".data", bytes(8), FINI), Sec(".fini"), Sec(".dtors"), Sec(".fini_array.5", bytes(8), FINI)]
)
def test_whatever_else_would_run_at_exit_is_refused(section: Sec) -> None:
    assert refused(made_object(section)) == AT_EXIT.format(section.name)


FINI_ARRAY = Sec(".fini_array", bytes(8), FINI, WRITE | ALLOC)


@pytest.mark.parametrize(
    "change",
    [
        {"fini": replace(FINI_ARRAY, name=".data")},
        {"fini": replace(FINI_ARRAY, data=bytes(16))},
        {"fini": replace(FINI_ARRAY, data=bytes(4))},
        {"rela": b""},
        {"rela": relocation(2)},
        {"rela": relocation(1, addend=1)},
        {"rela": relocation(4)},
        {"rela": relocation(5)},
        {"rela": relocation(1) * 2},
        {"rela": relocation(1) * 2, "named": (UNLOADS, ENTERS, PRINTS, UNLOADS)},
        {"rela": b"", "named": (ENTERS, PRINTS)},
        {"named": (replace(UNLOADS, name="other"), ENTERS, PRINTS)},
        {"named": (UNLOADS, ENTERS, PRINTS, UNLOADS)},
    ],
)
def test_only_the_compilers_own_unload_may_run_at_exit(change: dict[str, object]) -> None:
    name = change["fini"].name if isinstance(change.get("fini"), Sec) else ".fini_array"  # type: ignore[union-attr]
    assert refused(made_object(**change)) == AT_EXIT.format(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "section",
    [
        Sec(".odd"),
        Sec(".rela.odd", b"", RELA),
        Sec(".data", flags=TLS | WRITE | ALLOC),
        Sec(".data", type=REL),
        Sec("x"),
    ],
)
def test_a_section_that_no_compiler_writes_is_refused(section: Sec) -> None:
    assert refused(made_object(section)) == f"audit.section: unexpected section {section.name}"


HERE = Symbol("mine", LOCAL, FUNC, 1, 0)


@pytest.mark.parametrize(
    ("symbol", "says"),
    [
        (replace(HERE, type=6), "audit.symbol: symbol mine is thread-local or resolved by code"),
        (replace(HERE, type=10), "audit.symbol: symbol mine is thread-local or resolved by code"),
        (replace(HERE, section=0), "audit.undefined: the object wants 'mine', which no launcher needs"),
        (replace(HERE, section=0, binding=WEAK), "audit.undefined: the object wants 'mine', which no launcher needs"),
        (replace(HERE, binding=GLOBAL), "audit.symbol: the object exports 'mine'"),
        (replace(HERE, binding=WEAK), "audit.symbol: the object exports 'mine'"),
        (ENTERS, "audit.symbol: the object exports no kgen_entry"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_symbol_that_no_launcher_has_is_refused_wherever_it_stands(symbol: Symbol, says: str, first: bool) -> None:
    usual = (UNLOADS, ENTERS, PRINTS)
    data = made_object(named=(symbol, *usual) if first else (*usual, symbol), rela=relocation(2 if first else 1))
    assert refused(data) == says
    assert objects.check(made_object(named=(*usual, HERE)), "sm_90a").sm == 90


def test_the_entry_is_defined_and_not_wanted() -> None:
    assert refused(made_object(named=(UNLOADS, PRINTS))) == "audit.symbol: the object exports no kgen_entry"
    wanted = replace(ENTERS, section=0)
    assert refused(made_object(named=(UNLOADS, wanted, PRINTS))).startswith("audit.undefined: the object wants")


@pytest.mark.parametrize("note", [Sec(".comment"), Sec(".note.GNU-stack", flags=EXEC)])
def test_an_object_says_that_its_stack_is_not_executable(note: Sec) -> None:
    assert refused(made_object(note=note)) == "audit.section: the object asks for an executable stack"


def test_what_cannot_be_read_is_refused_with_the_reason() -> None:
    said = "audit.elf: the object cannot be read: "
    assert refused(b"") == f"{said}not a 64-bit little-endian ELF file"
    assert refused(made_object(held=fat(image(machine=62)))) == f"{said}not a cubin"
