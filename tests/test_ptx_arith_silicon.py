"""PTX arithmetic against an H200: bits that its own instructions gave, recorded once for every form sm_90a has.

`data/ptx_arith_h200.txt` has one lane a line: `opcode.modifiers operands > results`, bits in hex. Recorded with kernels
of one instruction each (ptxas 13.0, sm_90a, driver of CUDA 13). Not in it, because the ISA leaves them open or the GPU
departs from the ISA's text: `bfe` and `bfi` of 64 bits with a position or length beyond 255, `cvt.{rm,rp}.ftz.f16.f32`
of subnormals (the GPU does not flush them), NaN through `cvt.rna.satfinite.tf32`, sin and cos beyond 2 pi.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.ptx_numbers import LAYOUT, bits_of, read, signed

from kgen.gates.ptx.arith import Pure, lookup, table, width

DTYPES = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
Lanes = list[tuple[list[int], list[int]]]


def recorded() -> dict[str, Lanes]:
    found: dict[str, Lanes] = defaultdict(list)
    path = Path(__file__).parent / "data" / "ptx_arith_h200.txt"
    for line in path.read_text(encoding="ascii").splitlines():
        name, *words = line.split()
        at = words.index(">")
        found[name].append(([int(w, 16) for w in words[:at]], [int(w, 16) for w in words[at + 1 :]]))
    return found


RECORDED = recorded()


def known(name: str) -> Pure:
    opcode, *modifiers = name.split(".")
    pure = lookup(opcode, tuple(modifiers))
    assert pure is not None, name
    return pure


def results(pure: Pure, lanes: Lanes) -> list[list[int]]:
    columns = zip(*(operands for operands, _ in lanes), strict=True)
    arrays = [np.array(c, DTYPES[width(k)]) for c, k in zip(columns, pure.operands, strict=True)]
    return [[int(v) for v in row] for row in zip(*pure.function(*arrays), strict=True)]


def test_every_opcode_of_the_table_was_recorded() -> None:
    assert {name.split(".")[0] for name in RECORDED} == {opcode for opcode, _ in table()}
    assert len(RECORDED) > 2000


def test_exact_instructions_give_the_bits_of_the_gpu() -> None:
    wrong = []
    for name, lanes in RECORDED.items():
        pure = known(name)
        if pure.approximate is None:
            for (operands, want), have in zip(lanes, results(pure, lanes), strict=True):
                if have != want:
                    wrong.append(f"{name} {[hex(v) for v in operands]}: {have}, GPU {want}")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("name", sorted(n for n in RECORDED if known(n).approximate is not None))
def test_approximate_instructions_are_within_their_error_of_the_gpu(name: str) -> None:
    pure = known(name)
    form = pure.results[0].removesuffix("x2")
    for (operands, want), have in zip(RECORDED[name], results(pure, RECORDED[name]), strict=True):
        for at in range(0, width(pure.results[0]), bits_of(form)):
            ours, theirs = (v[0] >> at & (1 << bits_of(form)) - 1 for v in (have, want))
            assert near(ours, theirs, form, pure), f"{name} {[hex(v) for v in operands]}: {ours:#x}, GPU {theirs:#x}"


def near(ours: int, theirs: int, form: str, pure: Pure) -> bool:
    """Equal, or both finite and apart by the documented error and one rounding."""
    a, b = read(ours, form), read(theirs, form)
    if "inf" in (a.size, b.size) or "nan" in (a.size, b.size):
        return a == b or a.size == b.size == "nan"
    exact, gpu = float(signed(a)), float(signed(b))
    unit = max(abs(exact), 2.0 ** (2 - (1 << (LAYOUT[form][0] - 1)))) * 2.0 ** -LAYOUT[form][1]
    bound = pure.approximate or 0.0
    allowed = {"ulp": bound * unit, "relative": bound * abs(exact), "absolute": bound * max(1.0, abs(exact))}[
        pure.error
    ]
    return abs(exact - gpu) <= allowed + unit
