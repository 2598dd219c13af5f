"""The formulas of KDA against plain Python, and verify steps against single steps."""

import math

import pytest
import torch
from support.kda import OP, drawn, problem

from kgen.contract import Values, relative_l2
from kgen.ops import kda_math
from kgen.ops.kda_inputs import TAPS, constants_of, weights_of


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(values: Values, row: int, slot: int, head: int) -> tuple[list[float], list[list[float]]]:
    """y and S of one head of one token at q = 1, in Python floats, straight from the formulas."""
    d = values["dt_bias"].numel()
    p, taps = values["p"][row].tolist(), values["conv"][slot].tolist()
    conv_w, f_b = values["conv_w"].tolist(), values["f_b"].tolist()

    def z(part: int) -> list[float]:
        found = []
        for c in range(part * d + head * 128, part * d + head * 128 + 128):
            x = sum(w * v for w, v in zip(conv_w[c], [*taps[c], p[c]], strict=True))
            found.append(x * sigmoid(x))
        return found

    zq, zk, v = z(0), z(1), z(2)
    q = [x / math.sqrt(sum(y * y for y in zq) + values["eps_qk"]) * values["scale"] for x in zq]
    k = [x / math.sqrt(sum(y * y for y in zk) + values["eps_qk"]) for x in zk]
    decay = []
    for c in range(head * 128, head * 128 + 128):
        rg = sum(a * b for a, b in zip(p[4 * d : 4 * d + 128], f_b[c], strict=True))
        slope = math.exp(float(values["a_log"][head]))
        decay.append(math.exp(values["lower_bound"] * sigmoid(slope * (rg + float(values["dt_bias"][c])))))
    b = sigmoid(p[4 * d + 128 + head])
    state = values["s"][slot, head].tolist()
    out = []
    for i in range(128):
        state[i] = [s * x for s, x in zip(state[i], decay, strict=True)]
        u = b * (v[i] - sum(s * x for s, x in zip(state[i], k, strict=True)))
        state[i] = [s + u * x for s, x in zip(state[i], k, strict=True)]
        out.append(sum(s * x for s, x in zip(state[i], q, strict=True)))
    norm = 1 / math.sqrt(sum(o * o for o in out) / 128 + values["eps"])
    gate = [sigmoid(g) for g in p[3 * d + head * 128 : 3 * d + head * 128 + 128]]
    y = [o * norm * w * g for o, w, g in zip(out, values["w_onorm"].tolist(), gate, strict=True)]
    return y, state


@pytest.mark.parametrize(("head", "family"), [(0, "normal"), (1, "normal"), (1, "tiny")])
def test_one_token_agrees_with_the_formulas_in_python_floats(head: int, family: str) -> None:
    """In `tiny` the eps of the norms decide; elsewhere the last norm cancels whatever scales q."""
    point, values = drawn(2, family=family)
    slot = int(values["slots"][1])
    y, state = by_hand(values, 1, slot, head)
    got = OP.reference(point, values, rounded=False)
    assert got["y"][1, head * 128 : head * 128 + 128].tolist() == pytest.approx(
        y, rel=1e-9, abs=1e-9 * max(map(abs, y))
    )
    assert got["s"][slot, head].flatten().tolist() == pytest.approx(
        [x for row in state for x in row], rel=1e-9, abs=1e-12
    )
    d = values["dt_bias"].numel()
    shifted = [
        [*old[1:], new] for old, new in zip(values["conv"][slot].tolist(), values["p"][1].tolist(), strict=False)
    ]
    assert len(shifted) == 3 * d
    assert got["conv"][slot].tolist() == shifted


def test_delta_step_on_numbers_worked_out_on_paper() -> None:
    """S D = [[.5, .5], [1.5, 1]]; S k = [.7, 1.7]; u = .5 ([1, -1] - [.7, 1.7]) = [.15, -1.35]."""
    x = [torch.tensor(v, dtype=torch.float64) for v in ([1.0, 0.0], [0.6, 0.8], [1.0, -1.0], [0.5, 0.25])]
    state = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    out, new = kda_math.delta_step(state, *x, torch.tensor(0.5, dtype=torch.float64))
    assert new.flatten().tolist() == pytest.approx([0.59, 0.62, 0.69, -0.08])
    assert out.tolist() == pytest.approx([0.59, 0.69])


@pytest.mark.parametrize(("strength", "kept"), [(1.0, 0.0), (0.0, 1.0)])
def test_full_strength_stores_v_under_k_and_none_stores_nothing(strength: float, kept: float) -> None:
    gen = torch.Generator().manual_seed(1)
    state, k, v = (torch.randn(n, generator=gen, dtype=torch.float64) for n in ((6, 6), (6,), (6,)))
    k = k / k.norm()
    _, new = kda_math.delta_step(state, k, k, v, torch.ones(6, dtype=torch.float64), torch.tensor(strength).double())
    want = kept * (state @ k) + (1 - kept) * v
    assert (new @ k).tolist() == pytest.approx(want.tolist(), abs=1e-12)


def test_convolution_weighs_the_newest_input_last() -> None:
    history, conv_w = torch.tensor([[1.0, 2.0, 3.0, 4.0, 10.0]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    got = kda_math.convolve(history, conv_w)
    sums = [0.1 + 0.4 + 0.9 + 1.6, 0.2 + 0.6 + 1.2 + 4.0]
    assert got.flatten().tolist() == pytest.approx([s * sigmoid(s) for s in sums], rel=1e-6)


@pytest.mark.parametrize(("rg", "want"), [(0.0, math.exp(-2.5)), (1e4, math.exp(-5)), (-1e4, 1.0)])
def test_decay_lies_between_the_lower_bound_and_one(rg: float, want: float) -> None:
    one = torch.ones(1, dtype=torch.float64)
    weights = kda_math.Weights(one, one[None], one.log(), one * 0, one)
    assert float(kda_math.decay(one * rg, weights, -5.0)) == pytest.approx(want, rel=1e-12)


def test_a_zero_vector_has_no_direction() -> None:
    assert kda_math.unit(torch.zeros(4), 1e-6).tolist() == [0.0] * 4


def test_a_sequence_in_two_parts_is_the_whole_sequence_and_float32_follows_float64() -> None:
    _, values = drawn(16, family="warm")
    rows, constants = values["p"], constants_of(values)

    def run(dtype: torch.dtype, *parts: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights, ys = weights_of(values, dtype), []
        taps, state = values["conv"][1].to(dtype), values["s"][1].to(dtype)
        for part in parts:
            y, taps, state = kda_math.sequence(rows[part].to(dtype), taps, state, weights, constants, rounded=True)
            ys.append(y)
        return torch.cat(ys), taps, state

    whole = run(torch.float64, slice(0, 16))
    halves = run(torch.float64, slice(0, 2), slice(2, 16))
    single = run(torch.float32, slice(0, 16))
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(whole, halves, strict=True))
    assert relative_l2(single[0], whole[0]) < 1e-4
    assert relative_l2(single[2], whole[2]) < 1e-6
    assert torch.equal(whole[1], rows[-TAPS:, : whole[1].shape[0]].double().mT)


def single_steps(
    values: Values, row: int, taps: torch.Tensor, state: torch.Tensor, count: int, rounded: bool
) -> dict[str, torch.Tensor]:
    """`count` steps of q = 1 on one request, from `row` on: y of each, and state and taps after the last."""
    point = problem(1)
    one: Values = {**{k: v for k, v in values.items() if k not in ("accepted", "slots")}}
    one |= {"slots": torch.tensor([1], dtype=torch.int32)}
    one |= {"conv": torch.stack([torch.zeros_like(taps), taps]), "s": torch.stack([torch.zeros_like(state), state])}
    ys = []
    for t in range(count):
        got = OP.reference(point, {**one, "p": values["p"][row + t : row + t + 1]}, rounded)
        one |= {"conv": got["conv"], "s": got["s"]}
        ys.append(got["y"][0])
    return {"y": torch.stack(ys), "conv": one["conv"][1], "s": one["s"][1]}


@pytest.mark.parametrize(("q", "kept"), [(q, n) for q in (4, 8) for n in range(1, q + 1)])
def test_two_verify_steps_are_single_steps_over_what_was_accepted(q: int, kept: int) -> None:
    """Draft q tokens, keep `kept`, draft q others: as if only the kept ones had ever been seen."""
    point, values = drawn(8, q)
    other = OP.inputs(point, "normal", 4, "cpu")
    b = 8 // q - 1  # the last request
    slots, start = values["slots"][b].long(), int(values["accepted"][b]) - 1
    taps, state = values["conv"][slots[0], :, start : start + TAPS], values["s"][slots[start]]
    first = OP.reference(point, values, rounded=False)
    accepted = values["accepted"].clone()
    accepted[b] = kept
    second = OP.reference(
        point, {**values, "p": other["p"], "accepted": accepted, "conv": first["conv"], "s": first["s"]}, rounded=False
    )
    before = single_steps(values, b * q, taps, state, kept, rounded=False)
    after = single_steps({**values, "p": other["p"]}, b * q, before["conv"], before["s"], q, rounded=False)
    rows = slice(b * q, b * q + q)
    assert torch.allclose(first["y"][rows][:kept], before["y"], rtol=1e-12, atol=1e-15)
    assert torch.allclose(second["y"][rows], after["y"], rtol=1e-12, atol=1e-15)
    assert torch.allclose(second["s"][slots[q - 1]], after["s"], rtol=1e-12, atol=1e-15)
    assert torch.equal(second["conv"][slots[0], :, q - 1 :], after["conv"])


@pytest.mark.parametrize("q", [4, 8])
def test_the_window_after_a_verify_step_is_two_kept_taps_and_the_new_inputs(q: int) -> None:
    point, values = drawn(q, q)
    values["accepted"] = torch.tensor([2], dtype=torch.int32)
    slot, channels = int(values["slots"][0, 0]), values["conv"].shape[1]
    got = OP.stock(point)(values)["conv"][slot]
    assert torch.equal(got[:, :2], values["conv"][slot, :, 2:4])  # taps start at 1: entries 1, 2, 3, of which two stay
    assert torch.equal(got[:, 2:], values["p"][:, :channels].mT)


@pytest.mark.parametrize("q", [4, 8])
def test_the_start_state_is_that_of_the_last_accepted_token(q: int) -> None:
    point, values = drawn(q, q)
    for n in range(1, q + 1):
        values["accepted"] = torch.tensor([n], dtype=torch.int32)
        want = OP.reference(point, values, True)["y"]
        spoiled = values["s"].clone()
        spoiled[[int(s) for i, s in enumerate(values["slots"][0]) if i != n - 1]] = float("nan")
        assert torch.equal(OP.reference(point, {**values, "s": spoiled}, True)["y"], want)
