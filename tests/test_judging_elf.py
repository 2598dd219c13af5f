"""The ELF reader on files written by hand, byte by byte: what it reads, and what it refuses at each edge."""

import struct
from dataclasses import replace

import pytest
from support.elves import NOBITS, PROGBITS, REL, RELA, STRTAB, SYMTAB, File, Sec, relocation, symbols

from kgen.gates.audit.elf import MAX_NAME, MAX_SECTIONS, Elf, ElfError, Relocation, Section, Symbol


def wrong(data: bytes) -> str:
    with pytest.raises(ElfError) as caught:
        Elf(data).symbols()
    return str(caught.value)


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


def test_a_table_that_is_cut_by_a_byte_is_refused_and_one_section_alone_has_no_name() -> None:
    assert wrong(File(THREE).made()[:-1]) == "its section table is broken"
    assert wrong(File(THREE, header={"number": 1, "names": 0}).made()).startswith("a name lies outside")


def test_names_may_reach_to_the_very_end_of_a_file() -> None:
    data = bytearray(File(THREE).made())
    row = struct.unpack_from("<Q", data, 40)[0] + 5 * 64  # of the names
    struct.pack_into("<Q", data, row + 32, len(data) - struct.unpack_from("<Q", data, row + 24)[0])
    assert [s.name for s in Elf(bytes(data)).sections][1:3] == [".one", ".two"]
