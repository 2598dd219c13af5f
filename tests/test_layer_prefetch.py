"""Weights pulled into L2: every byte is asked for once, a stage starts with its seat, and too much is refused."""

from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from support.ptx import execute
from test_layer_record import measured

from kgen.contract import Values
from kgen.gates.layer import check, picture, prefetch
from kgen.gates.layer.bench import able, build, new_bench
from kgen.gates.layer.chain import Gathered, Lanes, OneLayer
from kgen.gates.layer.check import Distances, Refused
from kgen.gates.layer.columns import columns
from kgen.gates.layer.markdown import markdown
from kgen.gates.layer.points import Job, Point, layer_of, model_of
from kgen.gates.layer.prefetch import (
    MIB,
    NONE,
    SCHEDULES,
    SEATS,
    WHOLE,
    Ahead,
    Piece,
    Stage,
    Unavailable,
    pieces,
    schedules,
    stages,
)
from kgen.gates.layer.record import Kernel, LayerRecord, Switch
from kgen.model.decoder.config import KDA, MLA
from kgen.model.decoder.weights import expected
from kgen.ops import REGISTRY
from kgen.records import Launch, LaunchArg, Problem

ASKED = "cp.async.bulk.prefetch.L2.global [%d6], %r6;"
# In the place of the instruction: one for each of the bytes that it would ask for, counted where it would ask.
COUNTED = """
mov.u64 %d7, 0;
each{i}:
setp.ge.u64 %p1, %d7, %d5;
@%p1 bra counted{i};
add.s64 %d6, %d2, %d4;
add.s64 %d6, %d6, %d7;
atom.global.add.u32 %r7, [%d6], 1;
add.s64 %d7, %d7, 4;
bra.uni each{i};
counted{i}:"""


@pytest.mark.parametrize("sizes", [(16, 2048), (2064, 4096), (9 * 2048 + 48, 32)])
def test_every_byte_is_asked_for_exactly_once(sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "AT_ONCE", 2)
    text = prefetch.ptx()
    assert text.count(ASKED) == 2
    for i in range(2):
        text = text.replace(ASKED, COUNTED.replace("{i}", str(i)), 1)
    arrays = {n: ("state", np.zeros(max(sizes) // 4 + 8, np.int32)) for n in ("a", "b")}
    args = [LaunchArg(n, 0, "00" * 8) for n in ("a", "b")]
    counts = [LaunchArg("", 0, size.to_bytes(8, "little").hex()) for size in sizes]
    order = (args[0], counts[0], args[1], counts[1])
    launch = Launch("kgen_weight_prefetch", (2, 1, 1), (4, 1, 1), (1, 1, 1), 0, {}, order)
    result, written = execute(text, [launch], arrays)
    assert not result.findings
    for name, size in zip(("a", "b"), sizes, strict=True):
        assert written[name].tolist() == [1] * (size // 4) + [0] * (len(written[name]) - size // 4)


def test_the_kernel_writes_nothing_and_the_interpreter_knows_its_instructions() -> None:
    arrays = {"a": ("state", np.arange(64, dtype=np.int32))}
    none = LaunchArg("", 0, "00" * 8)
    size = LaunchArg("", 0, (256).to_bytes(8, "little").hex())
    args = (LaunchArg("a", 0, "00" * 8), size, *[none] * 6)
    launch = Launch("kgen_weight_prefetch", (2, 1, 1), (32, 1, 1), (1, 1, 1), 0, {}, args)
    result, written = execute(prefetch.ptx(), [launch], arrays)
    assert not result.skipped and not result.findings
    assert np.array_equal(written["a"], np.arange(64))


class Told:
    """A binder whose ops say when they run."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def bind(self, op: object, problem: Problem, seat: str):  # type: ignore[no-untyped-def]
        def call(values: Values) -> dict[str, torch.Tensor]:
            self.said.append(seat)
            return {}

        return call


def test_a_stage_starts_with_its_seat_and_pulls_the_first_part_of_its_weights() -> None:
    said: list[str] = []
    weights = {"a": torch.zeros(3 * MIB, dtype=torch.uint8), "b": torch.zeros(100, dtype=torch.uint8)}

    def pull(some: Sequence[Piece]) -> None:
        said.append("pull " + " ".join(str(size) for _, size in some))
        assert some[0][0] == weights["a"].data_ptr()

    binder = Ahead(Told(said), (Stage("core", (("a", 2), ("b", 1))),), weights, pull, 0)
    op = REGISTRY.get("attn_res")
    calls = [binder.bind(op, Problem("attn_res", "nano", 1, "", {}), f"layers.1.{s}") for s in ("pre", "core", "post")]
    for call in calls:
        call({})
    assert said == ["layers.1.pre", f"pull {2 * MIB} 96", "layers.1.core", "layers.1.post"]


@pytest.mark.parametrize(
    ("weights", "l2", "said"),
    [
        ({}, 0, "pulls w, which this layer lacks"),
        ({"w": torch.zeros(4 * MIB, dtype=torch.uint8)}, 7 * MIB, "pulls 4 MiB; of 7 MiB of L2 a stage may fill 50%"),
        ({"w": torch.zeros(64, 64)[:, 1:]}, 0, "does not lie in one piece"),
    ],
)
def test_what_cannot_be_pulled_is_said(weights: dict[str, torch.Tensor], l2: int, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        pieces(Stage("core", (("w", 8),)), weights, l2)


@pytest.mark.parametrize("name", [n for n in SCHEDULES if n != NONE])
@pytest.mark.parametrize("setting", ["nano", "tp8", "tp16", "vllm-tp1"])
def test_schedules_pull_what_the_layers_have_and_half_an_l2_holds(name: str, setting: str) -> None:
    for kind, own in SCHEDULES[name].items():
        config = model_of(setting)
        start = f"layers.{layer_of(config, kind)}."
        table = {n.removeprefix(start): s for n, (_, s) in expected(config, REGISTRY).items() if n.startswith(start)}
        for stage in own:
            moved = [min(2 * int(np.prod(table[w])), most * MIB) for w, most in stage.weights]  # all are bf16
            assert sum(moved) <= 30_000_000  # of the H200's 60 MB


def test_the_first_schedule_is_the_chains_and_others_are_columns() -> None:
    job = Job(Point("nano", "kda", 2, 0), device="cpu", prefetch=schedules(["gaps", "wide", "none", "gaps"]))
    found = {c.name: (c.schedule, c.overlap) for c in columns(job, REGISTRY)}
    assert found == {
        "unfused": (NONE, False), "chain": ("gaps", True), "no_overlap": ("gaps", False),
        "no_prefetch": (NONE, True), "prefetch_wide": ("wide", True), "no_promoted": ("gaps", True),
    }  # fmt: skip
    with pytest.raises(ValueError, match="no schedule 'x'; known: none, "):
        schedules(["x"])


@pytest.mark.parametrize("kind", [KDA, MLA])
def test_a_stage_may_start_beside_every_seat_of_a_layer_and_no_other(kind: str) -> None:
    config, said = model_of("nano"), list[str]()
    number = layer_of(config, kind)
    start = f"layers.{number}."
    table = {n.removeprefix(start): s for n, (_, s) in expected(config, REGISTRY).items() if n.startswith(start)}
    hollow = {n: torch.empty(s, device="meta") for n, s in table.items()}

    class Listed(Told):
        def bind(self, op: object, problem: Problem, seat: str):  # type: ignore[no-untyped-def]
            self.said.append(seat.split(".")[2])

    OneLayer(config, number, hollow, 2, "sm_90a", Listed(said), REGISTRY, Lanes(), Gathered())
    assert set(said) == set(SEATS[kind])
    assert {stage.beside for one in SCHEDULES.values() for stage in one.get(kind, ())} <= set(said)


def test_a_schedule_that_is_spelled_out_is_the_named_one() -> None:
    assert stages("core:kda.w_o", KDA) == SCHEDULES["outputs"][KDA]
    assert stages("pre:kda.w_in=12+core:kda.w_o+post:moe.w_router", KDA) == SCHEDULES["gaps"][KDA]
    several = stages("append:mla.w_qb/mla.w_uk=3", MLA)
    assert several == (Stage("append", (("mla.w_qb", WHOLE), ("mla.w_uk", 3))),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kore:kda.w_o", "no seat is called 'kore'; seats: pre, in_proj, core, "),
        ("core:", "'' is no weight"),
        ("core:kda.w_o=", "'kda.w_o=' is no weight"),
        ("core:kda.w_o=0", "'kda.w_o=0' is no weight"),
        ("core:kda.w_o+", "no seat is called ''"),
        ("core:kda.w_o=x/moe.w_up", "'kda.w_o=x' is no weight"),
    ],
)
def test_a_schedule_that_does_not_read_well_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        schedules([NONE, text])
    assert "\n" not in str(error.value) and not isinstance(error.value, Unavailable)


def test_a_spelled_schedule_is_a_column_and_one_that_the_layer_has_no_place_for_is_left_out_with_the_reason() -> None:
    fine, nowhere, strange = "core:kda.w_o+post:moe.w_router=1", "append:kda.w_o", "core:mla.w_qb"
    job = Job(
        Point("nano", KDA, 2, 0), device="cpu", compiled=False, prefetch=schedules([NONE, fine, nowhere, strange])
    )
    with torch.no_grad():
        bench = new_bench(job, REGISTRY)
        bench.job, left_out = able(bench)
        build(bench, columns(bench.job, REGISTRY))
    assert left_out["prefetch_append:kda.w_o"] == "a kda layer has no seat 'append' to pull beside"
    assert "pulls mla.w_qb, which this layer lacks" in left_out["prefetch_core:mla.w_qb"]
    assert [name for name in bench.sides if name.startswith("prefetch_")] == [f"prefetch_{fine}"]
    assert all(built.pulls for built in bench.sides[f"prefetch_{fine}"])
    assert not any(built.pulls for built in bench.sides["chain"])


def test_the_page_says_where_a_prefetch_pays_by_its_whole_interval() -> None:
    def point(tokens: int, job: Job, *switches: Switch):  # type: ignore[no-untyped-def]
        one = measured(Point("vllm-tp1", KDA, tokens, 0))
        return one.__class__(**{**vars(one), "job": Job(one.job.point, prefetch=job.prefetch), "switches": switches})

    own = Job(Point("vllm-tp1", KDA, 1, 0), prefetch=("gaps", "wide"))
    page = markdown(
        LayerRecord(
            (
                point(
                    1, own, Switch("no_prefetch", 4.0, 1.05, 1.01, 1.08), Switch("prefetch_wide", -1, 0.99, 0.98, 1.0)
                ),
                point(
                    8, own, Switch("no_prefetch", 4.0, 1.05, 1.0, 1.08), Switch("prefetch_wide", -3, 0.97, 0.95, 0.99)
                ),
            )
        )
    )
    assert "A prefetch pays, by its whole interval: `gaps` at t1 c0; `wide` at t8 c0." in page
    none = point(1, Job(own.point, prefetch=("none", "wide")), Switch("prefetch_wide", 0.0, 1.0, 0.9, 1.1))
    assert "A prefetch pays, by its whole interval: `wide` at no point." in markdown(LayerRecord((none,)))
    assert "A prefetch pays" not in markdown(LayerRecord((measured(),)))


def test_a_pull_that_changes_a_bit_is_refused_unless_the_chain_does_not_repeat_itself() -> None:
    one, two = {"delta": torch.zeros(2)}, {"delta": torch.tensor([0.0, 1e-30])}
    check.unchanged("x", one, one, one)
    check.unchanged("x", one, two, one)
    with pytest.raises(Refused, match="x: delta is not what it is without prefetch"):
        check.unchanged("x", two, one, one)


def test_a_single_tile_of_a_single_row_is_seen_and_a_lucky_row_of_stock_is_no_yardstick() -> None:
    stock = Distances({"delta": torch.tensor([4e-3, 4e-3, 1e-4])}, torch.full((3, 56), 4e-3), True)
    mine = Distances({"delta": torch.tensor([4e-3, 4e-3, 4e-3])}, torch.full((3, 56), 4e-3), True)
    assert check.judged("x", mine, stock) == {"delta": 1.0}
    mine.blocks[1, 7] = 0.05
    with pytest.raises(Refused, match=r"a tile of the delta of one row is 12\.50x"):
        check.judged("x", mine, stock)


def test_the_picture_has_a_bar_where_each_kernel_ran() -> None:
    kernels = (Kernel("a<b>&c", 0.0, 30.0, 7), Kernel("side", 15.0, 15.0, 9), Kernel("late", 50.0, 50.0, 7))
    found = ElementTree.fromstring(picture.svg(measured().__class__(**{**vars(measured()), "timeline": kernels})))
    bars = [b for b in found.iter("{http://www.w3.org/2000/svg}rect") if b.get("class") is None]
    scale = (1160 - 70 - 20) / 100
    at = [(float(b.get("x", "")), float(b.get("width", "")), b.get("y"), b[0].text or "") for b in bars]
    assert [x for x, *_ in at] == pytest.approx([70, 70 + 50 * scale, 70 + 15 * scale], abs=0.06)
    assert [at[k][1] for k in range(3)] == pytest.approx([30 * scale, 50 * scale, 15 * scale], abs=0.06)
    assert at[0][2] == at[1][2] != at[2][2] and at[0][3].startswith("1: a<b>&c, 30.00")
    assert picture.svg(measured().__class__(**{**vars(measured()), "timeline": ()})) == ""
