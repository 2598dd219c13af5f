"""Matrix instructions: fragments, shared-memory layouts and tensor maps as pure functions on arrays.

    mma.mma(modifiers)             -> Mma | None          mma.sync: registers in, registers out
    warp.ldmatrix, warp.stmatrix   -> MatrixCopy | None   rows of 16 bytes <-> registers; warp.movmatrix transposes
    wgmma.wgmma(modifiers)         -> Wgmma | None        A and B from registers or by descriptor, D in registers
    descriptor.decode(bits)        -> Descriptor | None   the shared-memory operand of wgmma
    copies.tensor_copy(modifiers)  -> TensorCopy | None   which tensor copy an instruction is
    tma.TensorMap                                         what such a copy moves
    tensormap.decode(bytes)        -> TensorMap           from the 128 bytes that a launch passes
    supported()                                           every form known here, as PTX writes it

None always means that a form is not known: the caller must not go on as if it were another. Order, groups, fences and
memory itself are the machine's business.
"""

from collections.abc import Iterable

from kgen.gates.ptx.matrix import copies, mma, warp, wgmma


def supported() -> tuple[str, ...]:
    """Every instruction known here, opcode and modifiers as PTX writes them, sorted."""
    known: dict[str, Iterable[tuple[str, ...]]] = {
        "cp": copies.FORMS,
        "ldmatrix": warp.FORMS,
        "mma": mma.FORMS,
        "movmatrix": (warp.MOVMATRIX,),
        "stmatrix": warp.FORMS,
        "wgmma": wgmma.FORMS,
    }
    return tuple(sorted(".".join((opcode, *modifiers)) for opcode, forms in known.items() for modifiers in forms))
