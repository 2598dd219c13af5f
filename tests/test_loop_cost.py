"""The static cost orders designs the way its formula says, and the matrix is what the settings ask for."""

from dataclasses import replace

import pytest
from support.loops import OP
from support.sets import build

from kgen.diagnosis import static
from kgen.loop import cost, matrix
from kgen.loop.settings import ARCHS, Settings
from kgen.records import BuildRecord, Candidate, KernelFacts, Launch, LaunchArg, Origin, to_json

POINT = OP.problem("k3-tp8", 8, "sm_90a")


def record(
    grid: int = 264, threads: int = 256, registers: int = 64, stack: int = 0, smem: int = 0, **ptx: int
) -> BuildRecord:
    base = build(Candidate(OP.name, "", Origin("t")), POINT, b"x")
    args = tuple(LaunchArg(name, 0, "0" * 16) for name in ("m", "w_gate_up", "w_down", "y"))
    launch = Launch("k", (grid, 1, 1), (threads, 1, 1), (1, 1, 1), smem, {}, args)
    kernel = KernelFacts("k", registers, stack, 0, threads, "0" * 64)
    return replace(base, kernels=(kernel,), launches=(launch,), ptx=ptx or {"global_loads_16b": 8})


def us(made: BuildRecord) -> float:
    return cost.static_cost(OP, [made])


def test_a_launch_moves_each_of_its_tensors_once() -> None:
    made = record()
    assert cost.launch_bytes(OP, made, made.launches[0]) == 2 * (3 * 768 * 7168 + 2 * 8 * 7168)
    twice = replace(made.launches[0], args=made.launches[0].args * 2)
    assert cost.launch_bytes(OP, made, twice) == cost.launch_bytes(OP, made, made.launches[0])


def test_workspaces_count_and_strange_arguments_do_not() -> None:
    made = replace(record(), workspaces=(("bf16", (8, 768)),))
    args = (LaunchArg("workspace0", 0, "0" * 16), LaunchArg("", 0, "0" * 16), LaunchArg("workspace7", 0, "0" * 16))
    assert cost.launch_bytes(OP, made, replace(made.launches[0], args=args)) == 2 * 8 * 768


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (record(), record(stack=64)),  # spills
        (record(grid=132), record(grid=16)),  # idle SMs
        (record(grid=264), record(grid=266)),  # a tail
        (record(smem=0), record(smem=200_000, threads=64)),  # one small block an SM
        (record(threads=256), record(threads=32, registers=255, global_loads_16b=1)),
        (record(smem=64_000, bulk_copies=4), record(smem=1_000, bulk_copies=4)),  # a deeper ring of copies
    ],
)
def test_what_the_formula_punishes_costs_more(better: BuildRecord, worse: BuildRecord) -> None:
    assert us(better) < us(worse)


def test_an_overlapped_launch_is_cheaper_and_a_second_launch_is_not_free() -> None:
    made = record()
    (launch,) = made.launches
    empty = replace(launch, args=())
    two = replace(made, launches=(launch, empty))
    overlapped = replace(made, launches=(launch, replace(empty, attributes={"pdl": 1})))
    assert us(made) < us(overlapped) < us(two)


def test_the_floor_is_never_undercut() -> None:
    floor = OP.cost(POINT).floor_us(4.48e12)
    assert us(record(grid=132, threads=1024)) > 0.9 * floor


def test_the_default_matrix_is_every_arch_dims_and_bin() -> None:
    settings = Settings(OP.name, "search").checked(OP)
    problems = matrix.full(OP, settings)
    assert len(problems) == len(ARCHS) * 3 * len(OP.pack.bins) == len({p.key for p in problems})
    assert [(p.dims, p.tokens, p.arch) for p in matrix.quick(OP, settings)] == [("k3-tp8", t, "sm_90a") for t in (1, 8)]
    assert {p.arch for p in problems} == set(ARCHS)
    assert all(p in problems for p in matrix.mutants(OP, settings))  # a mutant is compared at points that were built


def test_other_axes_take_their_default() -> None:
    from kgen.ops import REGISTRY

    op = REGISTRY.get("attn_res")
    settings = Settings(op.name, "search", dims=("nano",), bins=(4,)).checked(op)
    assert {p.axes["variant"] for p in matrix.full(op, settings)} == {"delta"}
    assert [p.tokens for p in matrix.quick(op, settings)] == [4]


def told(made: BuildRecord) -> list[str]:
    launches = [to_json(cost.launch_cost(OP, made, launch).__dict__) for launch in made.launches]
    return static.lines({"us": us(made), "launches": launches})


@pytest.mark.parametrize(
    ("made", "most"),
    [
        (record(), "bytes once"),  # two whole waves, enough in flight
        (record(grid=132, threads=32, global_loads_16b=1), "too few bytes in flight (0.512 of 27 kB an SM)"),
        (record(stack=640), "spills (640 B a thread)"),
        (record(grid=16, threads=1024), "waiting for the last one (16 blocks)"),
    ],
    ids=["plain", "thin", "spills", "uneven"],
)
def test_the_terms_that_are_told_add_up_to_the_cost_and_the_largest_is_named(made: BuildRecord, most: str) -> None:
    found = cost.launch_cost(OP, made, made.launches[0])
    parts = found.launch_us + found.bytes_us + found.thin_us + found.uneven_us + found.spill_us
    assert parts == pytest.approx(found.us)
    first, remedies = told(made)
    total, _, terms = first.removeprefix(f"{POINT.key}: ").partition(" µs = ")
    assert float(total) == pytest.approx(sum(float(t.split()[0]) for t in terms.split(" + ")), abs=0.03)
    assert most in max(terms.split(" + ")[1:], key=lambda t: float(t.split()[0]))
    assert remedies.startswith("What lowers it, largest term first: ")


def test_bytes_are_those_of_a_plain_read_and_launches_are_counted() -> None:
    # 3 * 768 * 7168 weights and two times 8 * 7168 activations, bf16, at 4.48 MB/us: 7.42 us
    (launch,) = record().launches
    two = replace(record(), launches=(launch, replace(launch, args=())))
    assert "4.00 launches (2) + 7.42 bytes once at a plain read's rate (33.3 MB)" in told(two)[0]


def test_at_the_small_dims_the_cost_is_said_to_be_no_time() -> None:
    small = replace(record(grid=4), problem=OP.problem("nano", 8, "sm_90a"))
    assert told(small)[-1] == static.SMALL and static.SMALL not in told(record(grid=4))
    finer = replace(record(grid=8), problem=small.problem)
    assert us(finer) < us(small)  # which is why it is said


@pytest.mark.parametrize("evidence", [None, {}, {"launches": 3}, {"launches": [{"us": 1.0}, 7]}])
def test_evidence_without_terms_says_nothing(evidence: object) -> None:
    assert static.lines(evidence) == []
