"""The planted tile: where it begins, how wide it is, and that a norm over a head's columns cannot forgive it."""

import ast

import pytest

from kgen.gates.builder.defects import BEGINS, FACTOR, THREADS, DefectError, scaled, tile
from kgen.gates.signature import signature
from kgen.ops import REGISTRY

HEAD = 128  # columns that a norm takes together


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(7168, (64, 192)), (192, (64, 192)), (191, (0, 95)), (128, (0, 64)), (16, (0, 8)), (4, (0, 2)), (1, (0, 1))],
)
def test_a_tile_lies_inside_the_row(columns: int, expected: tuple[int, int]) -> None:
    assert tile(columns) == expected


@pytest.mark.parametrize("columns", [128, 256, 448, 960, 1536, 7168])
def test_no_norm_over_a_head_has_the_whole_tile_or_nothing_of_it(columns: int) -> None:
    begin, end = tile(columns)
    for head in range(begin // HEAD, -(-end // HEAD)):
        inside = min(end, (head + 1) * HEAD) - max(begin, head * HEAD)
        assert 0 < inside < HEAD


@pytest.mark.parametrize(
    ("shape", "element", "begin", "end"),
    [
        ((8,), "out[row]", 0, 1),
        ((8, 7168), "out[row, column]", BEGINS, BEGINS + THREADS),
        ((8, 16), "out[row, column]", 0, 8),
        ((4, 12, 576), "out[row, 0, column]", BEGINS, BEGINS + THREADS),
    ],
)
def test_the_source_scales_that_tile_of_every_row(shape: tuple[int, ...], element: str, begin: int, end: int) -> None:
    source = scaled(3, 1, 1, 2, shape)
    ast.parse(source)
    assert f"column = thread + {begin}\n    if column < {end}:\n        {element} = ({element}.to" in source
    assert f"* {FACTOR})" in source and "launch(grid=[a2.shape[0], 1, 1]" in source


@pytest.mark.parametrize("shape", [(), (1, 2, 3, 4)])
def test_an_output_without_tiles_is_refused_in_one_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(DefectError, match=f"an output of {len(shape)} dimensions"):
        scaled(1, 0, 0, 0, shape)


@pytest.mark.parametrize("name", sorted(REGISTRY.ops))
def test_the_scaled_output_has_columns_wherever_the_op_has_such_a_one(name: str) -> None:
    op = REGISTRY.get(name)
    problem = op.problem("nano", 8, "sm_90a", {"logits": "yes"} if "logits" in op.axes else {})
    made = signature(op, problem)
    kind, shape = made.tensors[made.first_out]
    assert len(shape) > 1 and not kind.startswith("Int")
