"""An entry made ready to run: one closure per instruction, registers by number, where its variables lie."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx import flow
from kgen.gates.ptx.arith import fit, width
from kgen.gates.ptx.memory import SHARED_START, Space, Tensor
from kgen.gates.ptx.state import Machine, Reader
from kgen.gates.ptx.syntax import Address, Entry, Imm, Instruction, Module, Not, Operand, Reg, Sym, Variable, Vector
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group

Array = npt.NDArray[Any]
MAX_VARIABLE = 1 << 26  # bytes of a variable in global or constant memory
REGISTER_BITS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64, "b128": 128}
NUMBER: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class Decoder:
    """What the makers of steps ask: registers by number, constants, addresses of variables."""

    def __init__(self, module: Module, entry: Entry, space: Space) -> None:
        self.entry = entry
        self.kinds = list(entry.registers.values())
        self._numbers = {name: i for i, name in enumerate(entry.registers)}
        self.spins = flow.spins(entry)
        self.params: dict[str, tuple[int, int]] = {}
        at = 0
        for param in entry.params:
            at = -(-at // param.align) * param.align
            self.params[param.name] = (at, param.size)
            at += param.size
        self.symbols: dict[str, int] = {name: offset for name, (offset, _) in self.params.items()}
        self.indexes: Mapping[int, bool] = {}  # instructions that compute addresses -> whether they are signed
        self.followed: frozenset[str] = frozenset()  # registers that may be read before they are written
        self.watched: frozenset[str] = frozenset()  # registers that wgmma uses
        self.at = 0  # index of the instruction that is decoded
        self.shared = self._lay_out([*module.variables, *entry.variables], "shared", SHARED_START)
        self.local = self._lay_out(entry.variables, "local", 0)
        for variable in (*module.variables, *entry.variables):
            if variable.space in ("global", "const"):
                self.symbols[variable.name] = self._global(variable, space).base

    def _lay_out(self, variables: Iterable[Variable], space: str, start: int) -> int:
        """Offsets of the variables of a space; dynamic ones lie behind all others. Returns their size."""
        at = start
        mine = sorted((v for v in variables if v.space == space), key=lambda v: not v.size)
        for variable in mine:
            at = -(-at // variable.align) * variable.align
            self.symbols[variable.name] = at
            at += variable.size
        return at - start

    @staticmethod
    def _global(variable: Variable, space: Space) -> Tensor:
        found = space.named(f".{variable.space} {variable.name}")
        if found is not None:
            return found
        if variable.size > MAX_VARIABLE:
            raise PtxError(0, f"variable {variable.name[:60]} of {variable.size} bytes is too large")
        data = np.zeros(-(-max(variable.size, 1) // 32) * 32, np.uint8)
        data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
        role = "workspace" if variable.space == "global" else "const"
        name = f".{variable.space} {variable.name}"
        return space.add(Tensor(data, name, role, 1, (variable.size,), variable.size, 0, None, False))

    # -- operands

    def number(self, operand: Operand, instruction: Instruction) -> int:
        """Number of a destination register; -1 for `_`."""
        if isinstance(operand, Reg):
            return self._numbers[operand.name]
        if isinstance(operand, Sym) and operand.name == "_":
            return -1
        raise PtxError(instruction.line, "a result needs a register")

    def bits(self, number: int) -> int:
        return REGISTER_BITS[self.kinds[number]]

    def source(self, operand: Operand, kind: str, instruction: Instruction) -> Reader:
        """Reads an operand as bits of a PTX type, on the lanes that `Group.read` gives."""
        if isinstance(operand, Reg):
            return self._register(self._numbers[operand.name], kind, instruction)
        if isinstance(operand, Not):
            inner = self._register(self._numbers[operand.reg.name], kind, instruction)
            return lambda m, g: ~inner(m, g)
        if isinstance(operand, Imm):
            constant = self.constant(operand, kind, instruction)
            return lambda m, g: constant
        if isinstance(operand, Sym) and operand.name.startswith("%"):
            name = operand.name
            return lambda m, g: _resized(g.read(m.special(name)), width(kind))
        if isinstance(operand, Sym) and operand.name in self.symbols:
            return self.source(Imm(self.symbols[operand.name]), kind, instruction)
        if isinstance(operand, Address) and isinstance(operand.base, Sym) and operand.base.name in self.symbols:
            return self.source(Imm(self.symbols[operand.base.name] + operand.offset), kind, instruction)
        raise PtxError(instruction.line, f"operand {operand!r:.80} is not known")

    def _register(self, number: int, kind: str, instruction: Instruction) -> Reader:
        have, want = self.bits(number), width(kind)
        if (have == 1) != (want == 1):
            raise PtxError(instruction.line, f"a .{self.kinds[number]} register is no .{kind}")
        if have == want:
            return lambda m, g: g.read(m.registers[number])
        return lambda m, g: _resized(g.read(m.registers[number]), want)

    def constant(self, operand: Imm, kind: str, instruction: Instruction) -> Array:
        """An immediate as an array of one element."""
        want = width(kind)
        value = operand.bits
        if operand.width == 4 and want == 64 and kind == "f64":
            value = int(np.float64(np.uint32(value).view(np.float32)).view(np.uint64))
        if operand.width == 8 and want == 32:
            value = int(np.float32(np.uint64(value).view(np.float64)).view(np.uint32))
        if want == 1:
            return np.array([value != 0])
        if want == 128:
            return np.array([[value & (1 << 64) - 1, value >> 64 & (1 << 64) - 1]], np.uint64)
        if want not in NUMBER:
            raise PtxError(instruction.line, f"no constant of type .{kind}")
        return np.array([value & (1 << want) - 1], NUMBER[want])

    def address(self, operand: Operand, instruction: Instruction) -> Reader:
        """Addresses (uint64) of the group's own lanes, as `Group.pick` gives them."""
        if not isinstance(operand, Address):
            raise PtxError(instruction.line, "an address stands in brackets")
        if isinstance(operand.base, Reg):
            number = self._numbers[operand.base.name]
            wide = self.bits(number) == 64
            offset = np.uint64(operand.offset & (1 << 64) - 1)
            mask = np.uint64((1 << 32) - 1)

            def read(m: "Machine", g: Group) -> Array:
                base = g.pick(m.registers[number])
                if wide:
                    return base + offset if offset else base
                found: Array = (base.astype(np.uint64) + offset) & mask
                return found

            return read
        if isinstance(operand.base, Imm):
            start = operand.base.bits
        elif operand.base.name in self.symbols:
            start = self.symbols[operand.base.name]
        else:
            raise PtxError(instruction.line, f"{operand.base.name[:60]} is not known")
        fixed = np.uint64((start + operand.offset) & (1 << 64) - 1)
        return lambda m, g: np.full(g.count, fixed, np.uint64)

    def picked(self, operand: Operand, kind: str, instruction: Instruction) -> Reader:
        """As `source`, on the group's own lanes alone."""
        if isinstance(operand, Reg):
            number, want = self._numbers[operand.name], width(kind)
            self._register(number, kind, instruction)
            if self.bits(number) == want:
                return lambda m, g: g.pick(m.registers[number])
            return lambda m, g: _resized(g.pick(m.registers[number]), want)
        if isinstance(operand, Not):
            inner = self.picked(operand.reg, kind, instruction)
            return lambda m, g: ~inner(m, g)
        if isinstance(operand, Sym) and operand.name.startswith("%"):
            name = operand.name
            return lambda m, g: _resized(g.pick(m.special(name)), width(kind))
        made = self.source(operand, kind, instruction)
        return lambda m, g: np.repeat(made(m, g), g.count, axis=0)

    def items(self, operand: Operand) -> tuple[Operand, ...]:
        return operand.items if isinstance(operand, Vector) else (operand,)


def _resized(value: Array, bits: int) -> Array:
    """Truncated or extended with zeros."""
    if value.ndim == 2 or value.dtype.itemsize * 8 == bits or value.dtype == np.bool_:
        return value
    return value.astype(NUMBER[bits])


def sized(value: Array, kind: str, bits: int) -> Array:
    """A value of a PTX type for a register of `bits` bits."""
    if width(kind) == bits or bits == 1 or value.ndim == 2:
        return value
    return fit(value, kind, bits)
