"""unit-numeric on every op: the stock stand-in passes, and faults of the kinds that a contract brings are refused.

States and slots, padding rows, free strides, integer outputs and their windows, 8-bit codes. The runner's code runs in
this process here, over checks that the gate's own plan has; tests/test_numeric_gate.py covers the process around it.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from kgen.contract import Op, Role
from kgen.gates import judge, numeric
from kgen.gates.numeric import Failure
from kgen.gates.runner import faults
from kgen.gates.runner import numeric as job_side
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.numeric import FAMILY, GRAPH, PADDED, Check
from kgen.gates.runner.out import Out
from kgen.ops import REGISTRY
from kgen.records import to_json

ALL = sorted(REGISTRY.ops)
Got = dict[str, torch.Tensor]
Fault = Callable[[BufferSet, Got, int], Got]
Wanted = Callable[[Check], bool]


class Bench:
    """Runs chosen checks of one point, with a fault planted in the stand-in."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.runs = folder, patch, 0

    def failures(
        self, name: str, tokens: int, fault: Fault | None = None, only: Wanted | None = None, **axes: str
    ) -> list[Failure]:
        op = REGISTRY.get(name)
        spec = stock_spec(op.problem("nano", tokens, "sm_90a", axes), "planted" if fault else "")
        ((spec, checks),) = numeric.make_plan(op, [spec])
        plan = [(spec, [c for c in checks if only is None or only(c)])]
        assert plan[0][1]
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        job = {"items": [{"spec": to_json(s), "checks": [to_json(c) for c in cs]} for s, cs in plan]}
        out = Out(folder)
        with self.patch.context() as patch:
            patch.setitem(faults.FAULTS, "planted", fault)  # type: ignore[arg-type]
            out.finish(job_side.run({**job, "cache": "/nowhere", "device": "cpu"}, out))
        records = tuple(json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines())
        outcome = Outcome("done", "", "", folder, records)
        return numeric.judge_outcome(op, plan, outcome, judge.Table(), "cpu")

    def code(self, *args: object, **kwargs: object) -> str:
        """The code that the gate would report, "pass" without a failure."""
        found: Sequence[Failure] = self.failures(*args, **kwargs)  # type: ignore[arg-type]
        return min((f.code for f in found), key=numeric.ORDER.index) if found else "pass"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def family(*names: str) -> Wanted:
    return lambda check: check.kind == FAMILY and check.family in names


def changed(got: Got, name: str, edit: Callable[[torch.Tensor], object]) -> Got:
    """The outputs with a copy of one of them edited in place."""
    value = got[name].clone()
    edit(value)
    return {**got, name: value}


# ---- the stock op passes


@pytest.mark.parametrize("name", ALL)
def test_the_stock_op_passes_every_check_of_every_op(name: str, bench: Bench) -> None:
    assert bench.failures(name, 2) == []


@pytest.mark.parametrize("name", ALL)
def test_the_stock_op_passes_where_a_bin_is_filled_in_part(name: str, bench: Bench) -> None:
    op = REGISTRY.get(name)
    for axes in ({}, {axis: values[-1] for axis, values in op.axes.items()}):
        padded = 24 if int(axes.get("q", "1")) == 8 else 12
        assert bench.failures(name, op.bin_for(padded), only=lambda c: c.kind == PADDED, **axes) == []


POINTS = [(n, axis, value) for n in ALL for axis, values in REGISTRY.get(n).axes.items() for value in values[1:]]


@pytest.mark.parametrize(("name", "axis", "value"), POINTS)
def test_the_stock_op_passes_at_every_value_of_the_axes(name: str, axis: str, value: str, bench: Bench) -> None:
    first = REGISTRY.get(name).families[0].name
    assert bench.failures(name, 8, only=lambda c: c.family == first and c.kind != PADDED, **{axis: value}) == []


# ---- faults that any op can have, in each of its outputs and states


def written(op: Op, *roles: Role) -> list[str]:
    return [t.name for t in op.present(op.problem("nano", 4, "sm_90a")) if t.role in roles]


OUTPUTS = [(n, output) for n in ALL for output in written(REGISTRY.get(n), Role.OUT)]
STATES = [(n, state) for n in ALL for state in written(REGISTRY.get(n), Role.STATE)]


def wrong(value: torch.Tensor) -> None:
    """5 % more in the last row, or the next whole number."""
    last = value[-1]
    value[-1] = (last.double() * 1.05).to(value.dtype) if value.is_floating_point() else last + 1


@pytest.mark.parametrize(("name", "output"), [*OUTPUTS, *STATES])
def test_a_wrong_row_of_any_output_or_state_is_refused(name: str, output: str, bench: Bench) -> None:
    first = family(REGISTRY.get(name).families[0].name)
    code = bench.code(name, 4, lambda b, got, n: changed(got, output, wrong), only=first)
    assert code in ("error", "hard_rule", "exact")


@pytest.mark.parametrize(("name", "output"), OUTPUTS)
def test_an_element_of_any_output_that_is_not_written_is_seen(name: str, output: str, bench: Bench) -> None:
    def skips(buffers: BufferSet, got: Got, call: int) -> Got:
        old = buffers.buffers[output].tensor.reshape(-1)[-1]
        return changed(got, output, lambda value: value.view(-1)[-1:].copy_(old))

    first = family(REGISTRY.get(name).families[0].name)
    assert bench.code(name, 4, skips, only=first) == "unwritten"


@pytest.mark.parametrize("name", ALL)
def test_an_input_that_is_changed_by_one_bit_is_seen(name: str, bench: Bench) -> None:
    op = REGISTRY.get(name)
    inputs = written(op, Role.IN, Role.WEIGHT)

    def writes(buffers: BufferSet, got: Got, call: int) -> Got:
        tensor = buffers.buffers[inputs[call % len(inputs)]].tensor
        tensor.view(torch.uint8).view(tensor.shape[0], -1)[0, 0] ^= 1
        return got

    assert bench.code(name, 4, writes, only=family(op.families[0].name)) == "inputs_written"


PITCHED = [
    (n, t.name) for n in ALL for t in REGISTRY.get(n).present(REGISTRY.get(n).problem("nano", 4, "")) if t.pitched
]


@pytest.mark.parametrize(("name", "tensor"), PITCHED)
@pytest.mark.parametrize("kind", [FAMILY, GRAPH])
def test_a_byte_between_two_entries_of_a_tensor_with_a_free_stride_is_guarded(
    name: str, tensor: str, kind: str, bench: Bench
) -> None:
    def spills(buffers: BufferSet, got: Got, call: int) -> Got:
        gap = buffers.buffers[tensor].gap
        assert gap is not None and gap.shape[0] == buffers.buffers[tensor].tensor.shape[0]
        gap[1, 0] = 0
        return got

    first = REGISTRY.get(name).families[0].name
    assert bench.code(name, 2, spills, only=lambda c: c.kind == kind and c.family == first) == "guard"


# ---- states and slots


def kda_slots(buffers: BufferSet) -> list[int]:
    return [int(n) for n in buffers.buffers["slots"].tensor.view(-1)]


def untouched_slot(buffers: BufferSet) -> int:
    used = kda_slots(buffers)
    return next(n for n in range(1, 100) if n not in used)


def null_slot_of_s(buffers: BufferSet, got: Got, call: int) -> Got:
    return changed(got, "s", lambda s: s[0, 0, 0, 0].add_(1.0))


def foreign_slot_of_conv(buffers: BufferSet, got: Got, call: int) -> Got:
    slot = untouched_slot(buffers)
    return changed(got, "conv", lambda conv: conv[slot, 5, 1].add_(1.0))


def one_bit_of_conv(buffers: BufferSet, got: Got, call: int) -> Got:
    slot = max(kda_slots(buffers))
    return changed(got, "conv", lambda conv: conv.view(torch.int16)[slot, 5, -1].bitwise_xor_(1))


def one_small_slot_of_s(buffers: BufferSet, got: Got, call: int) -> Got:
    """One of many slots is 0.2 % off: a distance over the whole pool would be diluted."""
    slot = max(kda_slots(buffers))
    return changed(got, "s", lambda s: s[slot].mul_(1.002))


def padding_row_of_y(buffers: BufferSet, got: Got, call: int) -> Got:
    row = next(i for i, slot in enumerate(kda_slots(buffers)) if slot <= 0)
    return changed(got, "y", lambda y: y[row, 3].fill_(1e-30))


def padding_row_of_y_of_requests(buffers: BufferSet, got: Got, call: int) -> Got:
    slots = buffers.buffers["slots"].tensor
    request = next(i for i in range(slots.shape[0]) if int(slots[i, 0]) <= 0)
    return changed(got, "y", lambda y: y[request * slots.shape[1] + 1, 3].fill_(1.0))


def forgets(buffers: BufferSet, got: Got, call: int) -> Got:
    """The state is not carried on: each step starts from zero."""
    owned = torch.tensor(kda_slots(buffers))
    return changed(got, "s", lambda s: s.index_fill_(0, owned, 0.0))


def writes_for_padding(buffers: BufferSet, got: Got, call: int) -> Got:
    """A slot of -1 taken as the last row of the cache."""
    return changed(got, "cache", lambda cache: cache.view(torch.uint8).view(-1)[-1:].bitwise_xor_(1))


def one_row_too_many(buffers: BufferSet, got: Got, call: int) -> Got:
    slots = [int(n) for n in buffers.buffers["slots"].tensor]
    row = next(n for n in range(200) if n not in slots)
    return changed(got, "cache", lambda cache: cache.view(-1, cache.shape[-1])[row].fill_(0.0))


STATE_FAULTS = [  # op, tokens, family, fault, code
    ("kda_core", 4, "null_slots", null_slot_of_s, "hard_rule"),
    ("kda_core", 4, "normal", null_slot_of_s, "hard_rule"),
    ("kda_core", 4, "normal", foreign_slot_of_conv, "hard_rule"),
    ("kda_core", 4, "normal", one_bit_of_conv, "exact"),
    ("kda_core", 8, "normal", one_small_slot_of_s, "error"),
    ("kda_core", 4, "null_slots", padding_row_of_y, "hard_rule"),
    ("kda_core", 2, "fast_decay", forgets, "error"),
    ("mla_kv_append", 4, "padding", writes_for_padding, "hard_rule"),
    ("mla_kv_append", 4, "normal", one_row_too_many, "hard_rule"),
]


@pytest.mark.parametrize(("name", "tokens", "values", "fault", "code"), STATE_FAULTS)
def test_states_change_where_the_call_owns_them_and_nowhere_else(
    name: str, tokens: int, values: str, fault: Fault, code: str, bench: Bench
) -> None:
    assert bench.code(name, tokens, fault, only=family(values)) == code


def test_a_verify_step_writes_no_slot_of_a_padding_request(bench: Bench) -> None:
    for fault in (null_slot_of_s, foreign_slot_of_conv, padding_row_of_y_of_requests):
        assert bench.code("kda_core", 8, fault, only=family("null_slots"), q="4") == "hard_rule"


def drifts(buffers: BufferSet, got: Got, call: int) -> Got:
    """Half of what one step may be off by, at every step."""
    owned = torch.tensor(kda_slots(buffers))
    return changed(got, "s", lambda s: s.index_copy_(0, owned, s[owned] * (1 + 1e-4)))


def test_an_error_that_adds_up_over_the_steps_is_refused(bench: Bench) -> None:
    assert bench.code("kda_core", 2, drifts, only=family("normal")) == "pass"
    assert bench.code("kda_core", 2, drifts, only=family("long_memory")) == "error"


# ---- padding rows


NO_ROWS = ("mla_kv_append",)  # its rows land where slots say: no output has a row for a token


@pytest.mark.parametrize("name", [n for n in ALL if n not in NO_ROWS])
def test_rows_that_look_at_padding_rows_are_seen(name: str, bench: Bench) -> None:
    """A result that is the same for finite padding, and NaN where a padding row holds NaN."""
    op = REGISTRY.get(name)
    source = next(t for t in op.present(op.problem("nano", 16, "")) if t.token_dim is not None and t.dtype == "bf16")
    output = written(op, Role.OUT)[0]

    def mixes(buffers: BufferSet, got: Got, call: int) -> Got:
        read = buffers.buffers[source.name].tensor.select(source.token_dim or 0, -1)
        if bool(read.isfinite().all()):
            return got
        return changed(got, output, lambda value: value.view(-1)[:8].fill_(float("nan") if floats else 9))

    floats = next(t for t in op.tensors if t.name == output).dtype not in ("i32", "i64")
    assert "padding" in {f.code for f in bench.failures(name, 16, mixes, only=lambda c: c.kind == PADDED)}


# ---- integer outputs, windows and codes


def runner_up(buffers: BufferSet, got: Got, call: int) -> Got:
    """The second best id of every row, with the best one's value."""
    h, w = (buffers.buffers[n].tensor.double() for n in ("h", "w_head"))
    second = torch.sort(h @ w.T, dim=-1, descending=True, stable=True).indices[:, 1]  # of equal ones the higher id
    return {**got, "id": (second + int(buffers.scalars["base_id"])).to(torch.int32)}


def other_order(buffers: BufferSet, got: Got, call: int) -> Got:
    return {n: t.index_select(1, torch.tensor([1, 0, 2, 3])) for n, t in got.items()}


def same_expert_twice(buffers: BufferSet, got: Got, call: int) -> Got:
    return changed(got, "ids", lambda ids: ids[0, 1:2].copy_(ids[0, 0:1]))


def out_of_range(buffers: BufferSet, got: Got, call: int) -> Got:
    return changed(got, "ids", lambda ids: ids[0, 0:1].fill_(16))


INTEGER_FAULTS = [
    ("lm_head_argmax", "near_ties", runner_up, "pass"),
    ("lm_head_argmax", "narrow_wins", runner_up, "hard_rule"),
    ("lm_head_argmax", "exact_ties", runner_up, "hard_rule"),
    ("moe_router", "clear", other_order, "hard_rule"),
    ("moe_router", "clear", same_expert_twice, "hard_rule"),
    ("moe_router", "normal", out_of_range, "hard_rule"),
]


@pytest.mark.parametrize(("name", "values", "fault", "code"), INTEGER_FAULTS)
def test_a_wrong_id_is_right_only_within_the_window(
    name: str, values: str, fault: Fault, code: str, bench: Bench
) -> None:
    assert bench.code(name, 4, fault, only=family(values)) == code


def steps_of_code(tensor: str, steps: int) -> Fault:
    """One small code of what was written is moved by that many steps: too little for a distance over the whole."""

    def moved(buffers: BufferSet, got: Got, call: int) -> Got:
        def move(value: torch.Tensor) -> None:
            rows = value.view(torch.uint8).view(-1, value.shape[-1])
            row = rows[int(buffers.buffers["slots"].tensor[0]) if "slots" in buffers.buffers else 0]
            size = row & 0x7F
            row[int(torch.where(size > 15, size, 127).argmin())] -= steps

        return changed(got, tensor, move)

    return moved


@pytest.mark.parametrize(
    ("name", "tensor", "refusal"), [("mla_q", "query", "error"), ("mla_kv_append", "cache", "hard_rule")]
)
def test_one_code_may_be_off_by_one_step_and_not_by_two(name: str, tensor: str, refusal: str, bench: Bench) -> None:
    for steps, code in ((1, "pass"), (2, refusal)):
        assert bench.code(name, 4, steps_of_code(tensor, steps), only=family("normal"), cache="e4m3") == code


def lse_of_the_empty(buffers: BufferSet, got: Got, call: int) -> Got:
    return changed(got, "lse", lambda lse: lse.masked_fill_(lse < -1e38, float("-inf")))


def rows_past_the_end(buffers: BufferSet, got: Got, call: int) -> Got:
    """Zero weight times NaN is NaN: what a kernel without a mask gives where old rows hold NaN."""
    lengths = buffers.buffers["lengths"].tensor
    return changed(got, "lat", lambda lat: lat[int(lengths.argmax())].fill_(float("nan")))


def test_attention_over_no_row_has_one_answer_and_old_rows_do_not_leak(bench: Bench) -> None:
    assert bench.code("mla_decode", 4, lse_of_the_empty, only=family("uneven"), lse="yes") in ("error", "hard_rule")
    assert bench.code("mla_decode", 2, rows_past_the_end, only=family("garbage")) == "error"
