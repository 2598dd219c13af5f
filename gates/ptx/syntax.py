"""Records of parsed PTX."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reg:
    name: str


@dataclass(frozen=True)
class Imm:
    """A number as written: an integer of any sign, or the bits of a float of `width` 4 or 8 (0: an integer)."""

    bits: int
    width: int = 0


@dataclass(frozen=True)
class Sym:
    """A variable, a parameter, a label or a special register."""

    name: str


@dataclass(frozen=True)
class Not:
    """A negated predicate."""

    reg: Reg


@dataclass(frozen=True)
class Vector:
    items: tuple["Operand", ...]


@dataclass(frozen=True)
class Pair:
    """`d|p`: two results."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True)
class Address:
    """`[base + offset]`, with what else the brackets hold (coordinates of a tensor copy)."""

    base: Reg | Sym | Imm
    offset: int = 0
    more: tuple["Operand", ...] = ()


Operand = Reg | Imm | Sym | Not | Vector | Pair | Address


@dataclass(frozen=True)
class Instruction:
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Reg | Not | None
    line: int
    text: str

    @property
    def name(self) -> str:
        """The opcode with its modifiers, as written."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """A module or local variable. `size` 0: dynamic shared memory. `data`: its initial bytes, b"" without any."""

    name: str
    space: str  # "global", "shared", "const", "local"
    align: int
    size: int
    data: bytes = b""


@dataclass(frozen=True)
class Param:
    name: str
    align: int
    size: int


@dataclass(frozen=True)
class Entry:
    name: str
    params: tuple[Param, ...]
    registers: Mapping[str, str]  # name -> "pred", "b16", ...
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]  # unique label -> index of an instruction (or their count)
    limits: Mapping[str, tuple[int, ...]]  # "reqntid", "maxntid", "reqnctapercluster", ...
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # unique name -> labels of brx.idx


@dataclass(frozen=True)
class Module:
    version: str
    target: str
    variables: tuple[Variable, ...]
    entries: Mapping[str, Entry]
