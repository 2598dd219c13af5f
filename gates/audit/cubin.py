"""Facts of a cubin, read from its sections: kernels, registers, stack, shared memory, parameters, code hash.

Field meanings were found by compiling and comparing with `ptxas -v`; NVIDIA documents the instruction encodings, not
this format. Not covered: disassembly, spill counts apart from the stack that holds them.
"""

import re
import struct
from dataclasses import dataclass

from kgen.gates.audit.elf import MAGIC, SHF_ALLOC, SHF_WRITE, SHT_NOBITS, Elf, ElfError
from kgen.records import KernelFacts, sha256_bytes

EM_CUDA = 190
FATBIN = b"\x50\xed\x55\xba"  # a fat binary: header, then entries of (kind, header bytes, payload bytes, payload)
FATBIN_VERSION, FATBIN_HEADER, KIND_ELF = 1, 16, 2
TEXT, INFO, SHARED, LOCAL = ".text.", ".nv.info.", ".nv.shared.", ".nv.local."

# .nv.info attributes: format byte 4 carries a sized payload, others a 16-bit value
SIZED = 4
REGISTERS, FRAME, MAX_THREADS, REQUIRED_THREADS, PARAMETER = 0x2F, 0x11, 0x05, 0x10, 0x17
NAME = re.compile(r"[A-Za-z_$%][\w$]*", re.ASCII)  # an identifier of PTX
ARCH = re.compile(r"sm_(\d+)([af]?)")
RESERVED_SMEM = 1024  # the system's part of each block's shared memory; the section counts it, the limit does not
NEW_ABI = 8  # from here on the architecture sits one byte higher in e_flags


@dataclass(frozen=True)
class Cubin:
    """`parameters`: per kernel, the bytes of each parameter in order. `accelerated`: an "a" architecture.

    `variables`: bytes of device memory that are a part of it, and that kernels can write.
    `image` is what the launcher hands to the driver: the fat binary round `data`.
    """

    data: bytes
    image: bytes
    sm: int
    accelerated: bool
    kernels: tuple[KernelFacts, ...]
    parameters: dict[str, tuple[int, ...]]
    variables: int = 0

    @property
    def sha256(self) -> str:
        return sha256_bytes(self.data)

    def is_for(self, arch: str) -> bool:
        match = ARCH.fullmatch(arch)
        return match is not None and int(match[1]) == self.sm and (match[2] == "a") == self.accelerated


def embedded(data: bytes) -> list[tuple[bytes, bytes]]:
    """(fat binary, cubin) for every cubin inside an object file. Raises ElfError for anything else hidden there."""
    out, at = [], data.find(FATBIN)
    covered = 0
    while at >= 0:
        image, found = _fat_binary(data, at)
        out += [(image, cubin) for cubin in found]
        covered += sum(cubin.count(MAGIC) for cubin in found)
        at = data.find(FATBIN, at + len(image))
    if data.count(MAGIC) != covered + 1:  # the object's own
        raise ElfError("it holds an ELF image outside of its fat binary")
    return out


def _fat_binary(data: bytes, at: int) -> tuple[bytes, list[bytes]]:
    if at + FATBIN_HEADER > len(data):
        raise ElfError("its fat binary is truncated")
    _, version, header, size = struct.unpack_from("<IHHQ", data, at)
    image = data[at : at + header + size]
    if version != FATBIN_VERSION or header != FATBIN_HEADER or len(image) != header + size:
        raise ElfError("its fat binary is broken")
    found, entry = [], header
    while entry < len(image):
        if entry + 16 > len(image):
            raise ElfError("its fat binary is broken")
        kind, _, skip, payload = struct.unpack_from("<HHIQ", image, entry)
        body = image[entry + skip : entry + skip + payload]
        if kind != KIND_ELF or len(body) != payload or not body.startswith(MAGIC) or skip < 16:
            raise ElfError("its fat binary holds something else than a plain cubin")
        found.append(body[: Elf(body).size])
        entry += skip + payload
    return image, found


def read(data: bytes, image: bytes = b"") -> Cubin:
    """Raises ElfError when it is not a cubin with at least one kernel."""
    elf = Elf(data)
    if elf.machine != EM_CUDA:
        raise ElfError("not a cubin")
    new = elf.abi_version >= NEW_ABI
    sm = (elf.flags >> 8 if new else elf.flags) & 0xFF
    accelerated = bool(elf.flags & (0x8 if new else 0x800))
    names = [s.name.removeprefix(TEXT) for s in elf.sections if s.name.startswith(TEXT)]
    if not names:
        raise ElfError("the cubin holds no kernel")
    if odd := [name for name in names if not NAME.fullmatch(name)]:
        raise ElfError(f"{odd[0]!r:.80} is no name of a kernel")
    common = _by_symbol(elf)
    kernels, parameters = [], {}
    for name in sorted(names):
        facts, sizes = _kernel(elf, name, common)
        kernels.append(facts)
        parameters[name] = sizes
    return Cubin(data, image, sm, accelerated, tuple(kernels), parameters, _variables(elf))


def _variables(elf: Elf) -> int:
    """Bytes of writable sections that are neither shared nor local memory: what is in them outlives a call."""
    writable = SHF_WRITE | SHF_ALLOC
    return sum(
        s.size for s in elf.sections if s.flags & writable == writable and not s.name.startswith((".nv.shared", LOCAL))
    )


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    out, at = [], 0
    while at + 4 <= len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        payload = data[at : at + value] if kind == SIZED else struct.pack("<H", value)
        at += value if kind == SIZED else 0
        out.append((attribute, payload))
    if at != len(data):
        raise ElfError("an .nv.info section is broken")
    return out


def _by_symbol(elf: Elf) -> dict[tuple[int, str], int]:
    """(attribute, symbol name) -> value, from the attributes that all kernels share one section for."""
    section = elf.section(".nv.info")
    if section is None:
        raise ElfError("the cubin has no .nv.info")
    symbols = elf.symbols()
    out = {}
    for attribute, payload in _attributes(elf.content(section)):
        if len(payload) == 8:
            symbol, value = struct.unpack("<II", payload)
            if symbol < len(symbols):
                out[attribute, symbols[symbol].name] = value
    return out


def _kernel(elf: Elf, name: str, common: dict[tuple[int, str], int]) -> tuple[KernelFacts, tuple[int, ...]]:
    text, info, shared = (elf.section(prefix + name) for prefix in (TEXT, INFO, SHARED))
    if text is None or info is None or (REGISTERS, name) not in common:
        raise ElfError(f"kernel {name[:60]} lacks its facts")
    threads, sizes = 0, {}
    for attribute, payload in _attributes(elf.content(info)):
        if attribute in (MAX_THREADS, REQUIRED_THREADS) and len(payload) == 12:
            x, y, z = struct.unpack("<III", payload)
            threads = x * y * z
        elif attribute == PARAMETER and len(payload) == 12:
            _, ordinal, _, packed = struct.unpack("<IHHI", payload)
            sizes[ordinal] = packed >> 18
    facts = KernelFacts(
        name=name,
        registers=common[REGISTERS, name],
        stack_bytes=common.get((FRAME, name), 0),
        static_smem=max(0, shared.size - RESERVED_SMEM) if shared is not None and shared.type == SHT_NOBITS else 0,
        max_threads=threads,
        code_sha256=sha256_bytes(elf.content(text)),
    )
    return facts, tuple(sizes[i] for i in sorted(sizes))
