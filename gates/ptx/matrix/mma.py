"""mma.sync: one warp multiplies A (16 x K) by B (K x 8) and adds C.

Covered: m16n8k8/k16 bf16 and f16, m16n8k4/k8 tf32, m16n8k16/k32 e4m3/e5m2 and s8/u8. Not covered (looked up as None):
sparse and block-scaled forms, m8n8 shapes, f64, 4-bit and 1-bit operands, kind::f8f6f4 (sm_100 and later).

PTX leaves the order and the rounding of a float sum open, so silicon differs from the sum rounded once. `unit` bounds
the difference relative to sum |a b| + |c| of the element; it is what an H200 showed on 12,000 elements of every form,
wide exponents among them, rounded up to a power of two. NaN and infinity are the same except where an f16 accumulator
of 8-bit products overflows on the way.
"""

from dataclasses import dataclass

from kgen.gates.ptx.matrix import fragments
from kgen.gates.ptx.matrix.formats import BITS, U32
from kgen.gates.ptx.matrix.fragments import Registers

M, N = 16, 8
FLOAT8 = ("e4m3", "e5m2")
INT8 = ("s8", "u8")


@dataclass(frozen=True)
class Mma:
    """One form of mma.sync. `a`, `b`: element formats; `accumulator`: f32, f16 or s32 (of C and D)."""

    a: str
    b: str
    accumulator: str
    k: int
    saturate: bool = False

    @property
    def a_registers(self) -> int:
        return M * self.k * BITS[self.a] // 1024

    @property
    def b_registers(self) -> int:
        return N * self.k * BITS[self.b] // 1024

    @property
    def c_registers(self) -> int:
        """Registers of C, and of D."""
        return 2 if self.accumulator == "f16" else 4

    @property
    def unit(self) -> float:
        """Bound of |silicon - function| / (sum |a b| + |c|) of an element; 0: bit for bit."""
        if self.accumulator == "f16":
            return 2.0**-9 if self.a in FLOAT8 else 2.0**-10
        return 0.0 if self.accumulator == "s32" else 2.0**-21

    @property
    def name(self) -> str:
        """The instruction as PTX writes it."""
        c, saturate = self.accumulator, ".satfinite" if self.saturate else ""
        return f"mma.sync.aligned.m16n8k{self.k}.row.col{saturate}.{c}.{self.a}.{self.b}.{c}"

    def function(self, a: Registers, b: Registers, c: Registers) -> list[U32]:
        """D = A B + C. Each register (warps, 32) uint32; returns `c_registers` registers of D.

        ValueError when the number of registers is not the form's.
        """
        left = fragments.a_matrix(self.a, fragments.stack(a, self.a_registers, "A"))
        right = fragments.b_matrix(self.b, fragments.stack(b, self.b_registers, "B"))
        packed = self.accumulator == "f16"
        start = fragments.c_matrix(fragments.stack(c, self.c_registers, "C"), packed)
        products = fragments.multiply(left, right)
        return fragments.c_registers(fragments.accumulate(self.accumulator, self.saturate, products, start), packed)


def _forms() -> dict[tuple[str, ...], Mma]:
    known = [Mma("bf16", "bf16", "f32", k) for k in (8, 16)]
    known += [Mma("f16", "f16", c, k) for k in (8, 16) for c in ("f32", "f16")]
    known += [Mma("tf32", "tf32", "f32", k) for k in (4, 8)]
    known += [Mma(a, b, c, k) for k in (16, 32) for a in FLOAT8 for b in FLOAT8 for c in ("f32", "f16")]
    known += [Mma(a, b, "s32", k, s) for k in (16, 32) for a in INT8 for b in INT8 for s in (False, True)]
    return {tuple(form.name.split(".")[1:]): form for form in known}


FORMS = _forms()


def mma(modifiers: tuple[str, ...]) -> Mma | None:
    """The form of `mma` with these modifiers, in PTX's order ("sync", "aligned", "m16n8k16", ...), or None."""
    return FORMS.get(modifiers)
