"""Contracts of several ranks: problems with ranks, symmetric buffers, references in rank order, rules over all ranks.

Expected sums are worked out element by element with Python's own numbers, not with the code under test.
"""

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kgen.contract.ranks import AXIS, Symmetric, apart, as_sent, of_rank, ranks_of, stacked
from kgen.contract.selftest import complaints
from kgen.ops import REGISTRY
from kgen.ops.ranked_allreduce_residual import RankedAllreduceResidual
from kgen.ops.ranked_oproj_allreduce_residual import RankedOprojAllreduceResidual

SUM, OPROJ = RankedAllreduceResidual(), RankedOprojAllreduceResidual()
BOTH = (SUM, OPROJ)
WIDTHS = ("1", "2", "4", "8", "16")
SETS = Path(__file__).parent.parent / "generated_kernels"


def f32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def bf16(x: float) -> float:
    """Nearest bf16 value, ties to even, by integer arithmetic on the bits."""
    bits = struct.unpack("I", struct.pack("f", x))[0]
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("f", struct.pack("I", bits & 0xFFFF_0000))[0]


def made(op, family: str, ranks: str, tokens: int = 4, seed: int = 5, **axes: str):
    problem = op.problem("nano", tokens, "sm_90a", {AXIS: ranks, **axes})
    return problem, op.inputs(problem, family, seed, "cpu")


# -- problems


@pytest.mark.parametrize("name", sorted(REGISTRY.ops))
def test_an_op_without_the_axis_has_one_rank_and_the_contract_that_its_evidence_is_bound_to(name: str) -> None:
    op = REGISTRY.get(name)
    problem = op.problem(op.pack.small, 1, "sm_90a")
    assert ranks_of(problem) == 1 and "ranks=" not in problem.key
    evidence = [json.loads(path.read_text()) for path in (SETS / name).glob("*.evidence.json")]
    bound = {found.get("evidence", found)["op_contract"] for found in evidence}  # of champions and those before them
    assert not bound or op.contract_sha256() in bound


@pytest.mark.parametrize("op", BOTH, ids=lambda op: op.name)
def test_a_problem_of_several_ranks_has_them_in_its_key_and_its_sizes(op) -> None:
    problem = op.problem("k3-tp8", 8, "sm_90a", {AXIS: "8"})
    assert ranks_of(problem) == 8 and op.sizes(problem)["ranks"] == 8 and "ranks=8" in problem.key
    assert ranks_of(op.problem("nano", 1, "sm_90a")) == 2
    with pytest.raises(ValueError, match="no ranks='3'"):
        op.problem("nano", 1, "sm_90a", {AXIS: "3"})


@pytest.mark.parametrize("op", BOTH, ids=lambda op: op.name)
def test_a_ranked_contract_is_fit_to_judge(op) -> None:
    assert complaints(op) == ()


def test_a_ranked_contracts_hash_is_the_same_in_another_process() -> None:
    script = "from kgen.ops.ranked_oproj_allreduce_residual import RankedOprojAllreduceResidual as R"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nprint(R().contract_sha256())"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == OPROJ.contract_sha256() != SUM.contract_sha256()


# -- references


@pytest.mark.parametrize("ranks", WIDTHS)
@pytest.mark.parametrize("family", [f.name for f in SUM.families])
def test_the_sum_is_rounded_after_every_rank_in_rank_order_and_once_to_bf16(family: str, ranks: str) -> None:
    problem, values = made(SUM, family, ranks, tokens=2)
    got = SUM.reference(problem, values, rounded=True)
    parts, prefix = values["part"].double(), values["prefix"].double()
    for column in range(0, 256, 37):
        total = 0.0
        for rank in range(int(ranks)):
            total = f32(total + float(parts[rank, 1, column]))
        o = bf16(total)
        want = bf16(f32(float(prefix[0, 1, column]) + o))
        for rank in range(int(ranks)):
            assert float(got["o"][rank, 1, column]) == o
            assert float(got["prefix"][rank, 1, column]) == want


def test_another_order_of_ranks_gives_other_bits() -> None:
    problem, values = made(SUM, "rank_order", "8")
    right = SUM.stock(problem)(values)
    other = SUM.stock(problem)({**values, "part": values["part"].flip(0).roll(1, 0)})
    true = SUM.reference(problem, values, False)["o"]
    rule = SUM.rule(SUM.tensors[2])
    rounded = SUM.reference(problem, values, True)["o"]
    assert not rule.judge(right["o"], right["o"], rounded, true, 1).complaint
    assert rule.judge(other["o"], right["o"], rounded, true, 1).complaint


def test_data_hold_the_sentinel_and_what_is_sent_does_not() -> None:
    _, values = made(SUM, "sentinel", "2")
    words = values["part"].view(torch.int32)
    sentinel = Symmetric("box", "bf16", (4, 256)).armed().view(torch.int32).flatten()[0]
    assert sentinel.item() == -(2**31) and (words == sentinel).any()
    assert not (as_sent(values["part"]).view(torch.int32) == sentinel).any()
    few = torch.tensor([-0x8000, 0, -0x4080, 0x7FC1, 1, -0x7FFF, -0x80], dtype=torch.int16)  # -0 first; then nan, inf
    assert as_sent(few.view(torch.bfloat16)).view(torch.int16).tolist() == [0, *few.tolist()[1:]]


@pytest.mark.parametrize("variant", ["delta", "prefix_only"])
@pytest.mark.parametrize("family", ["normal", "rank_order", "cancelling", "all_blocks"])
def test_each_rank_sees_what_the_contract_of_one_rank_states_for_a_full_mailbox(family: str, variant: str) -> None:
    problem, values = made(OPROJ, family, "4", tokens=2, variant=variant)
    one = REGISTRY.get("oproj_allreduce_residual")
    got = OPROJ.reference(problem, values, rounded=True)
    rounded = [
        (y.double() @ w.double().T).to(torch.bfloat16) + 0.0
        for y, w in zip(*(values[k] for k in ("y", "w_o")), strict=True)
    ]
    for rank in range(4):
        mailbox = torch.stack([torch.full_like(p, torch.nan) if r == rank else p for r, p in enumerate(rounded)])
        alone = one.problem("nano", 2, "sm_90a", {"variant": variant})
        want = one.reference(alone, {**of_rank(values, rank), "peers": mailbox}, rounded=True)
        assert torch.equal(got["prefix"][rank], want["prefix"])
        assert torch.equal(got["out"][rank], want["out"])


@pytest.mark.parametrize("ranks", ["1", "2", "8"])
@pytest.mark.parametrize("op", BOTH, ids=lambda op: op.name)
def test_stock_passes_every_family(op, ranks: str) -> None:
    for family in op.families:
        problem, values = made(op, family.name, ranks, tokens=2)
        stock = op.stock(problem)(values)
        rounded, true = (op.reference(problem, values, r) for r in (True, False))
        for spec in op.outputs(problem):
            rule = op.rule(spec)
            assert not rule.judge(stock[spec.name], stock[spec.name], rounded[spec.name], true[spec.name], 1).complaint
        assert op.hard_rules(problem, values, stock) == []


# -- rules over all ranks


@pytest.mark.parametrize("op", BOTH, ids=lambda op: op.name)
def test_one_bit_that_differs_on_one_rank_is_a_breach_that_names_it(op) -> None:
    problem, values = made(op, "normal", "4")
    good = op.stock(problem)(values)
    bad = {k: v.clone() for k, v in good.items()}
    bad["prefix"].view(torch.int16)[2, 1, 7] ^= 1
    assert "prefix of rank 2 differs from rank 0's at [1, 7]" in op.hard_rules(problem, values, bad)
    assert apart(good, good) == [] and apart(good, bad) == ["prefix is not the same in two runs: rank 2, [1, 7]"]


def test_the_sign_of_a_zero_and_nan_are_bits_too() -> None:
    zero, nan = torch.zeros(2, 3), torch.full((2, 3), torch.nan)
    assert apart({"x": nan}, {"x": nan}) == []
    assert apart({"x": zero}, {"x": -zero}) == ["x is not the same in two runs: rank 0, [0]"]


@pytest.mark.parametrize("variant", ["delta", "prefix_only"])
def test_a_rank_that_was_left_out_of_the_sum_is_outside_of_the_bounds_on_every_rank(variant: str) -> None:
    problem, values = made(OPROJ, "normal", "8", variant=variant)
    weights = values["w_o"].clone()
    weights[5] = 0.0
    got = OPROJ.stock(problem)({**values, "w_o": weights})
    lines = OPROJ.hard_rules(problem, values, got)
    assert len(lines) == 8 and all("must be between" in line for line in lines)
    blocks = {**OPROJ.stock(problem)(values)}
    blocks["blocks"] = blocks["blocks"] + 1
    assert OPROJ.hard_rules(problem, values, blocks) == ["a block slot has changed; this op writes none"]


def test_outputs_of_ranks_are_stacked_in_rank_order() -> None:
    _, values = made(SUM, "normal", "4")
    mine = [of_rank(values, rank) for rank in range(4)]
    assert [m["rank"] for m in mine] == [0, 1, 2, 3]
    whole = stacked([{"part": m["part"]} for m in mine])
    assert torch.equal(whole["part"], values["part"])


# -- symmetric buffers


def test_a_symmetric_buffer_counts_all_its_parities_and_begins_armed() -> None:
    box = Symmetric("box", "bf16", (8, 4, 256), parities=3, lag=1)
    assert (box.one, box.bytes) == (8 * 4 * 256 * 2, 3 * 8 * 4 * 256 * 2)
    assert hashlib.sha256(box.armed().view(torch.uint8).numpy().tobytes()).digest() == (
        hashlib.sha256(b"\0\0\0\x80" * (box.bytes // 4)).digest()
    )
    plain = Symmetric("flags", "i32", (4,), parities=1, sentinel=None)
    assert plain.armed().tolist() == [[0, 0, 0, 0]] and plain.unarmed(plain.armed() + 1, 3, 0) == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"parities": 1}, "too few"),
        ({"parities": 2, "lag": 1}, "too few"),
        ({"lag": -1}, "too few"),
        ({"sentinel": 1 << 32}, "one 32-bit word"),
        ({"sentinel": None, "lag": 1}, "nothing is armed"),
        ({"shape": (3,)}, "32-bit words"),
        ({"shape": ()}, "32-bit words"),
        ({"dtype": "bf17"}, "not known"),
        ({"name": "a b"}, "not known"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_in_one_line(more: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        Symmetric(**{"name": "box", "dtype": "bf16", "shape": (4,), **more})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parities", "lag", "calls"), [(2, 0, 1), (2, 0, 7), (3, 1, 1), (3, 1, 5), (4, 2, 1), (4, 2, 9)]
)
def test_only_parities_of_the_last_calls_may_hold_data(parities: int, lag: int, calls: int) -> None:
    box = Symmetric("box", "bf16", (2, 4), parities, lag=lag)
    allowed = {(calls - 1 - back) % parities for back in range(lag) if back < calls}
    for parity in range(parities):
        held = box.armed()
        held[parity, 1, 2] = 1.0
        lines = box.unarmed(held, calls, 3)
        if parity in allowed:
            assert lines == []
        else:
            assert len(lines) == 1 and f"box of rank 3, parity {parity}: word 3 holds 0x80003f80" in lines[0]
    assert box.unarmed(box.armed(), calls, 0) == []
