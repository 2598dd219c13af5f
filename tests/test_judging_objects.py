"""Every rule of the object audit on objects written by hand; real ones are in test_audit_object.py."""

import platform
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.elves import (
    ALLOC,
    EXEC,
    FINI,
    FUNC,
    GLOBAL,
    INIT,
    LOCAL,
    PREINIT,
    REL,
    RELA,
    TLS,
    WEAK,
    WRITE,
    File,
    Sec,
    fat,
    image,
    relocation,
    symbols,
)

from kgen.gates.audit import object as objects
from kgen.gates.audit.elf import Symbol
from kgen.gates.audit.object import ENTRY, INTERNAL, UNLOAD, AuditError

CUBIN = image()
FINI_AT, SYMBOLS_AT = 3, 5
UNLOADS = Symbol(UNLOAD, LOCAL, FUNC, 1, 16)
ENTERS = Symbol(ENTRY, GLOBAL, FUNC, 1, 0)
PRINTS = Symbol("printf", GLOBAL, 0, 0, 0)


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
    "section",
    [
        Sec(".data", bytes(8), FINI),
        Sec(".fini"),
        Sec(".dtors"),
        Sec(".fini_array.5", bytes(8), FINI),
        Sec(".rela.data", bytes(8), FINI),
    ],
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
        {"named": (UNLOADS._replace(name="other"), ENTERS, PRINTS)},
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
        (HERE._replace(type=6), "audit.symbol: symbol mine is thread-local or resolved by code"),
        (HERE._replace(type=10), "audit.symbol: symbol mine is thread-local or resolved by code"),
        (HERE._replace(section=0), "audit.undefined: the object wants 'mine', which no launcher needs"),
        (HERE._replace(section=0, binding=WEAK), "audit.undefined: the object wants 'mine', which no launcher needs"),
        (HERE._replace(binding=GLOBAL), "audit.symbol: the object exports 'mine'"),
        (HERE._replace(binding=WEAK), "audit.symbol: the object exports 'mine'"),
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
    wanted = ENTERS._replace(section=0)
    assert refused(made_object(named=(UNLOADS, wanted, PRINTS))).startswith("audit.undefined: the object wants")


@pytest.mark.parametrize("note", [Sec(".comment"), Sec(".note.GNU-stack", flags=EXEC)])
def test_an_object_says_that_its_stack_is_not_executable(note: Sec) -> None:
    assert refused(made_object(note=note)) == "audit.section: the object asks for an executable stack"


def test_what_cannot_be_read_is_refused_with_the_reason() -> None:
    said = "audit.elf: the object cannot be read: "
    assert refused(b"") == f"{said}not a 64-bit little-endian ELF file"
    assert refused(made_object(held=fat(image(machine=62)))) == f"{said}not a cubin"
