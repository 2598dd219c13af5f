"""Rules for the relocatable object that a build leaves, checked before anything links it."""

import platform
from collections.abc import Callable

from kgen.gates.audit import cubin as cubins
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.elf import (
    SHF_EXECINSTR,
    SHF_TLS,
    SHN_UNDEF,
    SHT_FINI,
    SHT_INIT,
    SHT_PREINIT,
    SHT_REL,
    STB_LOCAL,
    STT_GNU_IFUNC,
    STT_TLS,
    Elf,
    ElfError,
)
from kgen.gates.builder.protocol import FUNCTION

ET_REL = 1
MACHINES = {"x86_64": 62, "aarch64": 183}

# What an exported launcher calls: the CuTe DSL runtime, and tvm-ffi for errors and the current stream. Found by
# building plain, TMA, cluster, cooperative and PDL kernels; anything else (libc included) is refused.
UNDEFINED = frozenset(
    {
        "CuteDSLRT_TVMFFISetRaisedCudaError",
        "TVMFFIEnvGetStream",
        "TVMFFIErrorSetRaisedFromCStr",
        "TVMFFIErrorSetRaisedFromCStrParts",
        "_GLOBAL_OFFSET_TABLE_",
        "_cuKernelGetAttribute",
        "_cuTensorMapEncodeTiled",
        "_cudaDeviceGetAttribute",
        "_cudaFuncSetAttribute",
        "_cudaGetDevice",
        "_cudaKernelSetAttributeForDevice",
        "_cudaLaunchKernelEx",
        "_cudaLibraryGetKernel",
        "_cudaLibraryLoadData",
        "_cudaSetDevice",
        "cuda_dialect_init_library_once",
        "cuda_dialect_unload_library_once",
        "printf",  # only to complain that a launch wants too much shared memory, which the limits then refuse
    }
)
ENTRY = f"__tvm_ffi_{FUNCTION}"
INTERNAL = f"__cute_internal_{FUNCTION}"
UNLOAD = f"{INTERNAL}___dtor_cuda_dialect_unload_library_once"  # the one destructor the compiler writes itself

# Sections that the compiler is known to write; an unknown one may mean something to a linker.
SECTIONS = frozenset(
    {
        ".strtab",
        ".shstrtab",
        ".symtab",
        ".symtab_shndx",
        ".text",
        ".ltext",
        ".rodata",
        ".lrodata",
        ".data",
        ".ldata",
        ".bss",
        ".lbss",
        ".eh_frame",
        ".fini_array",
        ".note.GNU-stack",
        ".comment",
        ".data.rel.ro",
        ".ldata.rel.ro",
        ".rodata.cst4",
        ".rodata.cst8",
        ".rodata.cst16",
        ".rodata.cst32",
        ".rodata.cst64",
        ".rodata.str1.1",
        ".rodata.str1.16",
        ".lrodata.cst16",
        ".lrodata.cst32",
        ".lrodata.str1.1",
        ".lrodata.str1.16",
    }
)


class AuditError(Exception):
    """The artefact breaks a rule: a stable code and one line."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check(data: bytes, arch: str) -> Cubin:
    """All object rules; returns the one cubin inside. Raises AuditError."""
    try:
        elf = Elf(data)
        for rule in RULES:
            rule(elf)
        found = cubins.embedded(data)
        if len(found) != 1:
            raise AuditError("audit.cubins", f"the object holds {len(found)} cubins, expected one")
        image, data = found[0]
        cubin = cubins.read(data, image)
    except ElfError as error:
        raise AuditError("audit.elf", f"the object cannot be read: {error}") from error
    if not cubin.is_for(arch):
        suffix = "a" if cubin.accelerated else ""
        raise AuditError("audit.arch", f"the cubin is for sm_{cubin.sm}{suffix}, claimed is {arch}")
    return cubin


def _header(elf: Elf) -> None:
    wanted = MACHINES.get(platform.machine())
    if elf.type != ET_REL or elf.machine != wanted:
        raise AuditError("audit.elf", f"not a relocatable object for {platform.machine()}")


def _sections(elf: Elf) -> None:
    for section in elf.sections:
        if section.type in (SHT_INIT, SHT_PREINIT) or section.name.startswith((".init", ".ctors", ".preinit")):
            raise AuditError("audit.constructor", f"section {section.name} would run code when it is loaded")
        if section.type == SHT_FINI or section.name.startswith((".fini", ".dtors")):
            _only_unload(elf, section.number)
        name = section.name.removeprefix(".rela")
        if name and (name not in SECTIONS or section.flags & SHF_TLS or section.type == SHT_REL):
            raise AuditError("audit.section", f"unexpected section {section.name}")


def _only_unload(elf: Elf, index: int) -> None:
    """A destructor is allowed when it is the compiler's own library unload."""
    section, symbols = elf.sections[index], elf.symbols()
    unload = [(s.section, s.value) for s in symbols if s.name == UNLOAD]
    targets = [
        (symbols[r.symbol].section, symbols[r.symbol].value + r.addend)
        for r in elf.relocations(section)
        if r.symbol < len(symbols)
    ]
    if section.name != ".fini_array" or section.size != 8 or len(targets) != 1 or targets != unload:
        raise AuditError("audit.constructor", f"section {section.name} would run unknown code at exit")


def _symbols(elf: Elf) -> None:
    entries = 0
    for symbol in elf.symbols()[1:]:
        if symbol.type in (STT_TLS, STT_GNU_IFUNC):
            raise AuditError("audit.symbol", f"symbol {symbol.name} is thread-local or resolved by code")
        if symbol.section == SHN_UNDEF:
            if symbol.name not in UNDEFINED:
                raise AuditError("audit.undefined", f"the object wants {symbol.name!r}, which no launcher needs")
        elif symbol.binding != STB_LOCAL and symbol.name != ENTRY and not symbol.name.startswith(INTERNAL):
            raise AuditError("audit.symbol", f"the object exports {symbol.name!r}")
        entries += symbol.name == ENTRY and symbol.section != SHN_UNDEF
    if entries != 1:
        raise AuditError("audit.symbol", f"the object exports no {FUNCTION}")


def _stack(elf: Elf) -> None:
    note = elf.section(".note.GNU-stack")
    if note is None or note.flags & SHF_EXECINSTR:
        raise AuditError("audit.section", "the object asks for an executable stack")


RULES: tuple[Callable[[Elf], None], ...] = (_header, _sections, _symbols, _stack)
