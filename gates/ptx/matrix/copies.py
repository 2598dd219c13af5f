"""The instructions that use a tensor map: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor and their prefetch.

Covered: tiled mode. Not covered (looked up as None): im2col, gather4/scatter4, cta_group and byte masks.
"""

from dataclasses import dataclass

LOAD, STORE, REDUCE, PREFETCH = "load", "store", "reduce", "prefetch"
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
HINT = "L2::cache_hint"


@dataclass(frozen=True)
class TensorCopy:
    """One tensor copy. Operands of the instruction in PTX, in this order:

    load      [shared address], [map, {coordinates}], [mbarrier], (multicast: CTA mask b16), (hint: b64)
    store     [map, {coordinates}], [shared address], (hint)
    reduce    as a store
    prefetch  [map, {coordinates}], (hint)
    """

    kind: str
    rank: int
    reduction: str = ""
    cluster: bool = False  # the destination is a shared::cluster address
    multicast: bool = False
    hint: bool = False


def _forms() -> dict[tuple[str, ...], TensorCopy]:
    known: dict[tuple[str, ...], TensorCopy] = {}
    for rank in range(1, 6):
        for hint in (False, True):
            for tile in ((), ("tile",)):
                known |= _of_rank(rank, hint, tile)
    return known


def _of_rank(rank: int, hint: bool, tile: tuple[str, ...]) -> dict[tuple[str, ...], TensorCopy]:
    tensor, tail = ("async", "bulk", "tensor", f"{rank}d"), (HINT,) * hint
    known = {}
    for space in ("shared::cta", "shared::cluster"):
        form = TensorCopy(LOAD, rank, cluster=space == "shared::cluster", hint=hint)
        known[*tensor, space, "global", *tile, "mbarrier::complete_tx::bytes", *tail] = form
    many = ("mbarrier::complete_tx::bytes", "multicast::cluster", *tail)
    known[*tensor, "shared::cluster", "global", *tile, *many] = TensorCopy(
        LOAD, rank, cluster=True, multicast=True, hint=hint
    )
    known[*tensor, "global", "shared::cta", *tile, "bulk_group", *tail] = TensorCopy(STORE, rank, hint=hint)
    for name in REDUCTIONS:
        modifiers = ("reduce", *tensor, "global", "shared::cta", name, *tile, "bulk_group", *tail)
        known[modifiers] = TensorCopy(REDUCE, rank, name, hint=hint)
    ahead = ("async", "bulk", "prefetch", "tensor", f"{rank}d", "L2", "global")
    known[*ahead, *tile, *tail] = TensorCopy(PREFETCH, rank, hint=hint)
    return known


FORMS = _forms()


def tensor_copy(modifiers: tuple[str, ...]) -> TensorCopy | None:
    """The form of `cp` with these modifiers ("async", "bulk", "tensor", "2d", ...), or None."""
    return FORMS.get(modifiers)
