"""wgmma.mma_async: four warps multiply A (64 x K) by B (K x N) from shared memory into accumulator registers.

Covered: m64nNk16 bf16 and f16, m64nNk8 tf32, m64nNk32 e4m3/e5m2 and s8/u8; A in registers or shared memory. Fences,
commit and wait groups are order, not arithmetic: the machine's business. Not covered (looked up as None): sparse forms
and 1-bit operands. Warps come in multiples of 4, in the order of their ranks: 4 i .. 4 i + 3 are warpgroup i.

Layouts, signs and integers are those of an H200 bit for bit. Float sums differ as with mma.sync (see there), but those
of 8-bit formats are much coarser: Hopper keeps about 13 bits of each product's sum before it adds the accumulator.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kgen.gates.ptx.matrix import formats, fragments
from kgen.gates.ptx.matrix.descriptor import Descriptor
from kgen.gates.ptx.matrix.formats import BITS, F64, U32
from kgen.gates.ptx.matrix.fragments import Registers

M, K_BYTES, A_REGISTERS, WARPS = 64, 32, 4, 4
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Wgmma:
    """One form of wgmma.mma_async. `a`, `b`: element formats; `accumulator`: f32, f16 or s32."""

    n: int
    a: str
    b: str
    accumulator: str
    saturate: bool = False

    @property
    def k(self) -> int:
        return K_BYTES * 8 // BITS[self.a]

    @property
    def d_registers(self) -> int:
        return self.n // (4 if self.accumulator == "f16" else 2)

    @property
    def scales(self) -> bool:
        """Whether the instruction has the operands imm-scale-a and imm-scale-b (1 or -1): floats only."""
        return self.accumulator != "s32"

    @property
    def transposes(self) -> bool:
        """Whether it has imm-trans operands (1: MN-major) for each operand in shared memory: 16-bit formats only."""
        return BITS[self.a] == 16

    @property
    def unit(self) -> float:
        """Bound of |silicon - function| / (sum |a b| + |d|) of an element; 0: bit for bit."""
        if self.accumulator == "s32":
            return 0.0
        if BITS[self.a] == 8:
            return 2.0**-9
        return 2.0**-10 if self.accumulator == "f16" else 2.0**-21

    @property
    def name(self) -> str:
        """The instruction as PTX writes it."""
        saturate = ".satfinite" if self.saturate else ""
        shape = f"m64n{self.n}k{self.k}{saturate}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.accumulator}.{self.a}.{self.b}"

    def a_atoms(self, descriptor: Descriptor, trans: bool = False) -> NDArray[np.int64]:
        """Addresses of the 16-byte atoms of A in shared memory, in the order that `a_shared` takes their bytes."""
        return descriptor.atoms(M, K_BYTES, trans, BITS[self.a] // 8)

    def b_atoms(self, descriptor: Descriptor, trans: bool = False) -> NDArray[np.int64]:
        """As a_atoms, of B: N rows of K, or of N when MN-major."""
        return descriptor.atoms(self.n, K_BYTES, trans, BITS[self.b] // 8)

    def a_shared(self, atoms: Bytes, trans: bool = False) -> F64:
        """Bytes (groups, *a_atoms' shape, 16) -> A (groups, 64, K)."""
        return _rows(self.a, atoms, trans)

    def b_shared(self, atoms: Bytes, trans: bool = False) -> F64:
        """Bytes (groups, *b_atoms' shape, 16) -> B (groups, K, N)."""
        return _rows(self.b, atoms, trans).swapaxes(1, 2)

    def a_fragment(self, registers: Registers) -> F64:
        """The four registers (warps, 32) of A -> A (groups, 64, K)."""
        numbers = fragments.a_matrix(self.a, fragments.stack(registers, A_REGISTERS, "A"))
        return numbers.reshape(-1, M, self.k)

    def function(
        self, d: Registers, a: F64, b: F64, scale_d: NDArray[np.bool_], scale_a: int = 1, scale_b: int = 1
    ) -> list[U32]:
        """D = A B + D where `scale_d` (groups,) is true, else A B. Returns the registers of D, (warps, 32) each.

        `a`, `b`: matrices from the functions above. `scale_a`, `scale_b`: 1 or -1. ValueError when the number of
        registers is not the form's. The rounding of sums is that of fragments.accumulate.
        """
        packed = self.accumulator == "f16"
        start = fragments.c_matrix(fragments.stack(d, self.d_registers, "D"), packed)
        keep = np.repeat(np.asarray(scale_d, bool), WARPS)[:, None, None]
        products = fragments.multiply(a, b) * (scale_a * scale_b)
        products = products.reshape(-1, M // WARPS, self.n)
        start = np.where(keep, start, np.zeros((), start.dtype))
        return fragments.c_registers(fragments.accumulate(self.accumulator, self.saturate, products, start), packed)


def _rows(kind: str, atoms: Bytes, trans: bool) -> F64:
    """Atoms of K-major rows or, `trans`, of rows of one k -> numbers (groups, rows, K)."""
    raw = np.ascontiguousarray(atoms).view(formats.RAW[BITS[kind]])
    numbers = formats.values(kind, raw.reshape(*raw.shape[:2], -1))
    return numbers.swapaxes(1, 2) if trans else numbers


def _forms() -> dict[tuple[str, ...], Wgmma]:
    types = [("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("tf32", "tf32", "f32")]
    types += [(a, b, c) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for c in ("f32", "f16")]
    known = [Wgmma(n, a, b, c) for a, b, c in types for n in range(8, 257, 8)]
    integer_n = (8, 24, *range(16, 257, 16))
    known += [
        Wgmma(n, a, b, "s32", s) for n in integer_n for a in ("s8", "u8") for b in ("s8", "u8") for s in (False, True)
    ]
    return {tuple(form.name.split(".")[1:]): form for form in known}


FORMS = _forms()


def wgmma(modifiers: tuple[str, ...]) -> Wgmma | None:
    """The form of `wgmma` with these modifiers ("mma_async", "sync", "aligned", "m64n64k16", ...), or None."""
    return FORMS.get(modifiers)
