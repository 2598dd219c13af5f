"""Tensor maps: boxes against plain loops, the instructions' forms, and the 128 bytes of a CUtensorMap."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kgen.gates.ptx.matrix import tensormap
from kgen.gates.ptx.matrix.copies import TensorCopy, tensor_copy
from kgen.gates.ptx.matrix.tma import TensorMap

PLAIN = TensorMap("bf16", 0x7F0000000000, (100, 60), (256,), (64, 7), (1, 1))


def loops(m: TensorMap, start: tuple[int, ...], shared: int) -> list[tuple[int | None, int]]:
    """(global address or None, shared address) of each element, dimension 0 fastest: the definition in words."""
    size = {"u8": 1, "bf16": 2, "f32": 4, "u64": 8}[m.dtype]
    ranges = [range(0, box, step) for box, step in zip(m.box, m.element_strides, strict=True)]
    out: list[tuple[int | None, int]] = []
    used = len(ranges[0])
    for number, reverse in enumerate(itertools.product(*ranges[::-1])):
        row = number // used
        at = [s + o for s, o in zip(start, reverse[::-1], strict=True)]
        inside = all(0 <= x < n for x, n in zip(at, m.sizes, strict=True))
        address = m.base + at[0] * size + sum(x * s for x, s in zip(at[1:], m.strides, strict=True))
        place = shared + row * max(used * size, m.swizzle) + number % used * size
        line, chunk, byte = place // 128, place % 128 // 16, place % 16
        chunk ^= {0: 0, 32: line % 8 & 1, 64: line % 8 & 3, 128: line % 8}[m.swizzle]
        out.append((address if inside else None, line * 128 + chunk * 16 + byte))
    return out


CASES = [
    (PLAIN, (3, 5)),
    (PLAIN, (90, 58)),
    (PLAIN, (-3, -2)),
    (PLAIN, (100, 0)),
    (replace(PLAIN, swizzle=128), (8, 1)),
    (replace(PLAIN, swizzle=64, box=(32, 9)), (-8, 55)),
    (replace(PLAIN, swizzle=32, box=(16, 19), element_strides=(1, 3)), (90, 50)),
    (replace(PLAIN, swizzle=128, element_strides=(1, 8)), (0, -4)),
    (TensorMap("f32", 0x1000, (60,), (), (32,), (1,)), (40,)),
    (TensorMap("u8", 0x1000, (60, 9, 5), (64, 1024), (32, 3, 2), (1, 2, 1), 32), (40, 7, 4)),
    (TensorMap("f32", 0, (20, 9, 5, 3), (128, 2048, 16384), (8, 3, 2, 2), (1, 2, 1, 1), 32), (15, -1, 3, 2)),
    (TensorMap("u64", 0, (6, 3, 4, 2, 3), (48, 160, 640, 1280), (4, 2, 3, 1, 2), (1, 1, 2, 1, 1)), (1, 1, 1, 1, 1)),
]


@pytest.mark.parametrize(("m", "start"), CASES, ids=str)
def test_a_box_is_what_the_loops_say(m: TensorMap, start: tuple[int, ...]) -> None:
    shared = 0x8400
    addresses, inside = m.global_addresses(np.array([start, tuple(x - 1 for x in start)]))
    places = m.shared_addresses(np.array([shared, shared + 1024]))
    want = loops(m, start, shared)
    assert places[0].tolist() == [place for _, place in want]
    assert inside[0].tolist() == [address is not None for address, _ in want]
    assert addresses[0][inside[0]].tolist() == [address for address, _ in want if address is not None]
    assert [a for a, _ in loops(m, tuple(x - 1 for x in start), 0) if a is not None] == addresses[1][inside[1]].tolist()
    assert places[1].tolist() == [place + 1024 for place in places[0]]
    assert m.transaction_bytes == len(want) * m.size
    assert len(set(places[0].tolist())) == len(want)


def test_the_atom_of_row_five_moves_to_chunk_five_of_its_line() -> None:
    m = replace(PLAIN, swizzle=128, box=(64, 8))
    places = m.shared_addresses(np.array([2048]))[0].reshape(8, 64)
    assert places[5, 0] == 2048 + 5 * 128 + 5 * 16 and places[5, 8 * 5] == 2048 + 5 * 128
    assert places[3, 63] == 2048 + 3 * 128 + 4 * 16 + 14


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dtype": "e4m3"}, "unknown element type"),
        ({"base": 8}, "multiple of 16"),
        ({"strides": (200,)}, "multiples of 16"),
        ({"strides": (1 << 40,)}, "below 2\\*\\*40"),
        ({"strides": ()}, "one less"),
        ({"box": (64, 257)}, "1 .. 256"),
        ({"sizes": (100, 0)}, "1 .. 2"),
        ({"box": (9, 1)}, "multiple of 16"),
        ({"swizzle": 64}, "no more than the swizzle"),
        ({"swizzle": 16}, "16 bytes"),
        ({"element_strides": (1, 9)}, "1 .. 8"),
        ({"dtype": "u16", "nan_fill": True}, "NaN fill"),
    ],
)
def test_a_map_that_the_driver_refuses_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(PLAIN, **change)


KINDS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16")  # as the driver numbers them
RECORDED = json.loads((Path(__file__).parent / "data" / "ptx_tensor_maps.json").read_text())


@pytest.mark.parametrize("row", RECORDED["driver"], ids=lambda row: row[-1][:24])
def test_the_drivers_bytes_decode_to_what_was_asked(row: list[object]) -> None:
    kind, address, sizes, strides, box, steps, swizzle, _, fill, text = row
    data = bytes.fromhex(text).ljust(128, b"\x5a")  # the tail is not read
    if kind >= len(KINDS):  # elements that a load rounds or flushes
        with pytest.raises(ValueError, match=r"tf32 elements|unknown element type"):
            tensormap.decode(data)
        return
    assert tensormap.decode(data) == TensorMap(
        KINDS[kind],
        int(address, 16),
        tuple(sizes),
        tuple(strides),
        tuple(box),
        tuple(steps),
        (0, 32, 64, 128)[swizzle],
        bool(fill),
    )


@pytest.mark.parametrize("row", RECORDED["launchers"], ids=str)
def test_the_compilers_launchers_describe_their_tiles(row: list[object]) -> None:
    kind, shape, tile, swizzle, text = row
    m = tensormap.decode(bytes.fromhex(text) + bytes(64))
    names = {"bf16": "bf16", "f16": "f16", "f32": "f32", "i32": "u32", "u8": "u8", "e4m3": "u8", "i64": "u64"}
    pitches = np.cumprod([m.size, *shape[:0:-1]])[1:]
    assert (m.dtype, m.sizes, m.strides) == (names[kind], tuple(shape[::-1]), tuple(int(p) for p in pitches))
    half = m.box[0] == 64 and m.box[1] == 32 and tile == [64, 64]  # the multicast to two CTAs: each loads half
    assert half or m.box == tuple(tile[::-1])
    assert (m.base, m.swizzle) == (1 << 40, (0, 32, 64, 128)[swizzle]) and set(m.element_strides) == {1}


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (8, 0x01, "unknown bits 0x1"),
        (8, 0x70, "rank 8"),
        (9, 0x08, "interleaved"),
        (9, 0x07, "unknown element format"),
        (10, 0x01, "tf32"),
        (11, 0x80, "unknown bits"),
        (16, 0x01, "beyond its rank"),
        (40, 0x01, "beyond its rank"),
        (53, 0x80, "not known"),
        (54, 0x01, "not known"),
        (57, 0x01, "beyond its rank"),
        (61, 0x01, "not known"),
    ],
)
def test_bytes_that_are_not_understood_are_refused(at: int, value: int, why: str) -> None:
    data = bytearray(bytes.fromhex(RECORDED["driver"][0][-1]) + bytes(64))
    data[at] |= value
    with pytest.raises(ValueError, match=why):
        tensormap.decode(bytes(data))
    with pytest.raises(ValueError, match="128 bytes expected"):
        tensormap.decode(bytes(64))


# Facts seen on an H200, where the documents are silent.


def test_a_row_narrower_than_the_swizzle_is_padded_to_it() -> None:
    m = TensorMap("u32", 0, (34, 4), (176,), (4, 5), (1, 3), 64)
    places = m.shared_addresses(np.array([640]))[0]
    assert m.transaction_bytes == 32 and places[:4].tolist() == [640 + 16, 644 + 16, 648 + 16, 652 + 16]
    assert places[4:].tolist() == [704 + 16, 708 + 16, 712 + 16, 716 + 16]  # line 5: chunk 0 -> 1, chunk 4 -> 5


def test_a_store_fills_the_last_atom_of_a_row() -> None:
    m = TensorMap("bf16", 0, (100, 60), (256,), (64, 1), (1, 1))
    for store, last in ((False, 198), (True, 206)):
        addresses, inside = m.global_addresses(np.array([[88, 0]]), store)
        assert addresses[inside].tolist() == list(range(176, last + 1, 2))


def test_coordinates_that_fault() -> None:
    coordinates = np.array([[0, 0], [3, 0], [8, 5], [-8, 0], [0, -1], [200, 99]])
    assert PLAIN.faults(coordinates, store=False).tolist() == [False, True, False, False, False, False]
    assert PLAIN.faults(coordinates, store=True).tolist() == [False, True, False, True, True, False]


def test_the_element_stride_of_dimension_0_is_ignored() -> None:
    m = TensorMap("bf16", 0, (300, 60), (1024,), (64, 7), (2, 3))
    assert m.counts == (64, 3)
    addresses, _ = m.global_addresses(np.array([[8, 2]]))
    assert addresses[0, :3].tolist() == [2064, 2066, 2068] and addresses[0, 64] == 5 * 1024 + 16


def test_nan_fill_is_the_drivers_pattern() -> None:
    for kind, size in (("bf16", 2), ("f16", 2), ("f32", 4), ("f64", 8)):
        m = TensorMap(kind, 0, (8,), (), (16,), (1,), nan_fill=True)
        assert m.fill.to_bytes(size, "little") == b"\xf7\x7f" * (size // 2)
        assert np.isnan(np.array([m.fill], f"<u{size}").view(f"<f{size}")[0]) or kind == "bf16"
        assert replace(m, nan_fill=False).fill == 0


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (
            "async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint",
            TensorCopy("load", 2, hint=True),
        ),
        (
            "async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster",
            TensorCopy("load", 2, cluster=True, multicast=True),
        ),
        ("async.bulk.tensor.5d.global.shared::cta.tile.bulk_group", TensorCopy("store", 5)),
        ("reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group", TensorCopy("reduce", 1, "add")),
        ("async.bulk.prefetch.tensor.3d.L2.global.tile", TensorCopy("prefetch", 3)),
        ("async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes", None),
        ("async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes", None),
        ("async.bulk.tensor.6d.global.shared::cta.tile.bulk_group", None),
        ("async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", None),
    ],
)
def test_the_instructions_forms(text: str, form: TensorCopy | None) -> None:
    assert tensor_copy(tuple(text.split("."))) == form
