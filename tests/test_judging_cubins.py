"""The cubin reader on files written by hand: each fact of a kernel, and whatever else may hide in an object."""

import struct

import pytest
from support.elves import (
    ALLOC,
    COMMON,
    FUNC,
    KERNEL,
    NOBITS,
    OWN,
    PROGBITS,
    WRITE,
    File,
    Sec,
    fat,
    image,
    parameter,
    plain,
    sized,
    symbols,
)

from kgen.gates.audit import cubin as cubins
from kgen.gates.audit.elf import ElfError, Symbol
from kgen.records import sha256_bytes


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
