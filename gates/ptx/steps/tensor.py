"""Tensor copies (TMA): boxes of described tensors between global and shared memory."""

import numpy as np

from kgen.gates.ptx.access import load, put, resolve
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.geometry import MAX_SHARED
from kgen.gates.ptx.matrix import copies
from kgen.gates.ptx.matrix.tma import TensorMap
from kgen.gates.ptx.memory import PARAM_WINDOW
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Reader, Step
from kgen.gates.ptx.steps.atomic import reduction
from kgen.gates.ptx.steps.bulk import AT_A_TIME, READ, WRITTEN, spread, stores_stamp
from kgen.gates.ptx.steps.control import nothing
from kgen.gates.ptx.syntax import Address, Instruction, Operand
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group


def copy(d: Decoder, i: Instruction) -> Step:
    form = copies.tensor_copy(i.modifiers)
    if form is None:
        raise UnsupportedError(i)
    if form.kind == copies.PREFETCH:
        return nothing(d, i)
    return _load(d, i, form) if form.kind == copies.LOAD else _store(d, i, form)


def _described(d: Decoder, operand: Operand, i: Instruction) -> tuple[Reader, list[Reader]]:
    """Readers of the map's address and of the coordinates."""
    if not isinstance(operand, Address) or len(operand.more) != 1:
        raise PtxError(i.line, "a tensor copy needs [map, {coordinates}]")
    return d.address(operand, i), [d.picked(o, "b32", i) for o in d.items(operand.more[0])]


def _maps(m: "Machine", addresses: Array, rank: int) -> list[tuple[TensorMap, Array]]:
    """The maps that lanes name, with the positions of those lanes, for a copy of `rank` coordinates."""
    found = []
    for address in np.unique(addresses).tolist():
        known = m.maps.get(address & (PARAM_WINDOW - 1))
        if known is None:
            m.give_up("the tensor map is not described in the launch")
            continue
        if known.rank != rank:  # the compiler leaves out a dimension of size 1; what the hardware does is not known
            m.give_up(f"a copy of {rank} coordinates with a tensor map of {known.rank}")
        if known.transaction_bytes > MAX_SHARED:
            m.give_up("the box of the tensor map is larger than shared memory")
        some = np.flatnonzero(addresses == address)
        parts = -(-len(some) * known.transaction_bytes // AT_A_TIME)
        found += [(known, part) for part in np.array_split(some, parts)]
    return found


def _coordinates(m: "Machine", g: Group, readers: list[Reader]) -> Array:
    """(lanes, rank) int64, innermost first."""
    return np.stack([read(m, g).view(np.int32).astype(np.int64) for read in readers], axis=1)


def _right(m: "Machine", described: TensorMap, g: Group, some: Array, at: Array, places: Array, store: bool) -> Array:
    """Those of some lanes whose copy the hardware takes; the others are reported."""
    wrong = described.faults(at[some], store) | ((places[some] & np.uint64(127)) != 0)
    if wrong.any():
        text = "a tensor copy needs shared memory at a multiple of 128 bytes and a first coordinate at one of 16 bytes"
        m.report_lanes(Kind.MISALIGNED, text, g.index[some[wrong]])
    right: Array = some[~wrong]
    return right


def _words(values: Array, size: int) -> Array:
    """(copies, elements) of `size` bytes -> (copies x n, 4) words of 16 bytes."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, 16).view(np.uint32)


def _load(d: Decoder, i: Instruction, form: copies.TensorCopy) -> Step:
    to, (where, axes) = d.address(i.operands[0], i), _described(d, i.operands[1], i)
    barrier = d.address(i.operands[2], i)
    mask = d.picked(i.operands[3], "b16", i) if form.multicast else None

    def step(m: "Machine", g: Group) -> Ended:
        coordinates, starts, barriers = _coordinates(m, g, axes), to(m, g), barrier(m, g)
        for described, every in _maps(m, where(m, g), len(axes)):
            some = _right(m, described, g, every, coordinates, starts, False)
            places, signals, lane = starts[some], barriers[some], np.arange(len(some))
            if mask is not None:
                masks = mask(m, g)[some]
                places, lane = spread(places, masks)
                signals = spread(signals, masks)[0]
            at, cta, slot = m.mbarriers.locate("shared::cluster", signals, g.index[some][lane], copies=True)
            stamps = m.mbarriers.stamp(cta, slot)
            reads = np.zeros(len(some), np.uint64)
            reads[lane[at]] = stamps
            tile = _fetch(m, described, coordinates[some], g.index[some], reads)
            _fill(m, described, places[at], g.index[some][lane[at]], tile[lane[at]], stamps)
            m.mbarriers.complete(cta, slot, np.full(len(at), described.transaction_bytes))
        return None

    return step


def _fetch(m: "Machine", described: TensorMap, coordinates: Array, index: Array, stamps: Array) -> Array:
    """(copies, elements) from global memory; outside of the tensor the fill."""
    addresses, inside = described.global_addresses(coordinates)
    tile = np.full(inside.shape, described.fill, f"u{described.size}")
    lanes, marks = (np.repeat(a, inside.shape[1]).reshape(inside.shape)[inside] for a in (index, stamps))
    tile[inside] = load(m, "global", addresses[inside].astype(np.uint64), lanes, described.size, 0, marks)
    return tile


def _chunks(described: TensorMap, places: Array) -> Array:
    """Addresses of the 16-byte pieces of boxes at shared addresses, as in `_words`."""
    low = described.shared_addresses((places & np.uint64((1 << 24) - 1)).astype(np.int64))
    high = places & ~np.uint64((1 << 24) - 1)
    per = 16 // described.size
    found: Array = (low[:, ::per].astype(np.uint64) | high[:, None]).reshape(-1)
    return found


def _fill(m: "Machine", described: TensorMap, places: Array, index: Array, tile: Array, stamps: Array) -> None:
    addresses = _chunks(described, places)
    each = len(addresses) // max(len(places), 1)
    words, lanes, marks = _words(tile, described.size), np.repeat(index, each), np.repeat(stamps, each)
    for target in resolve(m, "shared::cluster", addresses, lanes, 16, True):
        chosen = slice(None) if target.at is None else target.at
        put(m, target, 16, words[chosen], 0, marks[chosen])


def _store(d: Decoder, i: Instruction, form: copies.TensorCopy) -> Step:
    (where, axes), source = _described(d, i.operands[0], i), d.address(i.operands[1], i)

    def step(m: "Machine", g: Group) -> Ended:
        coordinates, sources = _coordinates(m, g, axes), source(m, g)
        reads, writes = stores_stamp(m, g.index, READ), stores_stamp(m, g.index, WRITTEN)
        for described, every in _maps(m, where(m, g), len(axes)):
            some = _right(m, described, g, every, coordinates, sources, True)
            index = g.index[some]
            pieces = _chunks(described, sources[some])
            each = len(pieces) // max(len(some), 1)
            lanes = np.repeat(index, each)
            words = load(m, "shared", pieces, lanes, 16, 0, np.repeat(reads[some], each))
            tile = np.ascontiguousarray(words).view(f"u{described.size}").reshape(len(some), -1)
            addresses, inside = described.global_addresses(coordinates[some], True)
            owners = np.repeat(index, inside.shape[1]).reshape(inside.shape)[inside]
            stamps = np.repeat(writes[some], inside.shape[1]).reshape(inside.shape)[inside]
            values, places = tile[inside], addresses[inside].astype(np.uint64)
            for target in resolve(m, "global", places, owners, described.size, True):
                chosen = slice(None) if target.at is None else target.at
                new = values[chosen]
                if form.kind == copies.REDUCE:
                    function = reduction(i, form.reduction, described.dtype.removesuffix(".ftz"))
                    new = function(target.block.load(target.offsets, described.size), new, None)
                put(m, target, described.size, new, 3 if form.kind == copies.REDUCE else 0, stamps[chosen])
        return None

    return step
