"""The nano model's whole-sequence form against the plain recurrence, one token at a time, written another way."""

import math

import pytest
import torch

from kgen.model.nano.chunked import delta_rule
from kgen.model.nano.shape import TINY
from kgen.model.nano.trainable import NanoModel

F64 = torch.float64


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# ---- the chunked delta rule ------------------------------------------------------------------------------------------


def plain_rule(*inputs: torch.Tensor) -> torch.Tensor:
    """Token by token, head by head."""
    q, k, v, gate, beta = (x.flatten(0, -3) for x in (*inputs[:4], inputs[4].unsqueeze(-1)))
    out = torch.zeros_like(v)
    for head in range(q.shape[0]):
        state = torch.zeros(v.shape[-1], q.shape[-1], dtype=q.dtype)
        for t in range(q.shape[1]):
            state = state * torch.exp(gate[head, t])
            state = state + torch.outer(beta[head, t] * (v[head, t] - state @ k[head, t]), k[head, t])
            out[head, t] = state @ q[head, t]
    return out.view(inputs[2].shape)


def rule_inputs(
    length: int, gates: str, dtype: torch.dtype = F64, keys: int = 8, same_key: bool = False
) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(length)
    q, k, g = (torch.randn(2, 2, length, keys, generator=gen, dtype=F64) for _ in range(3))
    v = torch.randn(2, 2, length, 5, generator=gen, dtype=F64)
    gate = {
        "mixed": -5 * torch.sigmoid(4 * g),
        "strongest": torch.full_like(g, -5.0),
        "weak": -1e-4 * g.abs(),
        "none": torch.zeros_like(g),
        "steps": torch.where(g > 1, -5.0, 0.0).to(F64),
    }[gates]
    k = torch.ones_like(k) if same_key else k
    beta = torch.ones(2, 2, length, dtype=F64) if same_key else torch.rand(2, 2, length, generator=gen, dtype=F64)
    return [x.to(dtype) for x in (q, k / k.norm(dim=-1, keepdim=True), v, gate, beta)]


@pytest.mark.parametrize("gates", ["mixed", "strongest", "weak", "none", "steps"])
@pytest.mark.parametrize("length", [1, 17, 64, 200])
def test_chunks_equal_the_recurrence(length: int, gates: str) -> None:
    inputs = rule_inputs(length, gates)
    torch.testing.assert_close(delta_rule(*inputs), plain_rule(*inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("gates", ["mixed", "strongest", "none"])
def test_chunks_keep_their_accuracy_in_float32(gates: str) -> None:
    exact, near = (delta_rule(*rule_inputs(200, gates, dtype)).double() for dtype in (F64, torch.float32))
    assert (exact - near).norm() <= 1e-5 * exact.norm()


def test_one_key_over_and_over_stays_accurate() -> None:
    """L is all ones: a solver that multiplies powers of L loses everything here."""
    exact, near = (delta_rule(*rule_inputs(130, "none", d, same_key=True)).double() for d in (F64, torch.float32))
    torch.testing.assert_close(exact, plain_rule(*rule_inputs(130, "none", same_key=True)), rtol=0, atol=1e-11)
    assert (exact - near).norm() <= 1e-5 * exact.norm()


@pytest.mark.parametrize("gates", ["mixed", "strongest", "steps"])
def test_gradients_of_chunks_are_those_of_the_recurrence(gates: str) -> None:
    gradients = []
    for rule in (delta_rule, plain_rule):
        inputs = [x.requires_grad_() for x in rule_inputs(150, gates)]
        weight = torch.randn(2, 2, 150, 5, generator=torch.Generator().manual_seed(1), dtype=F64)
        gradients.append(torch.autograd.grad((rule(*inputs) * weight).sum(), inputs))
    for mine, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-11)


def test_gradients_agree_with_finite_differences() -> None:
    inputs = [x[:1, :1].clone().requires_grad_() for x in rule_inputs(66, "mixed", keys=2)]
    assert torch.autograd.gradcheck(delta_rule, inputs, eps=1e-6, atol=1e-6, fast_mode=True)


# ---- the whole model against one token at a time ---------------------------------------------------------------------


def norm(x: torch.Tensor, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean() + 1e-5) * weight


def plain_mix(sources: list[torch.Tensor], w: dict[str, torch.Tensor], at: str) -> torch.Tensor:
    scores = [float(norm(v) @ (w[f"{at}.w_norm"] * w[f"{at}.w_query"])) for v in sources]
    total = sum(math.exp(s) for s in scores)
    return norm(sum(v * (math.exp(s) / total) for v, s in zip(sources, scores, strict=True)), w[f"{at}.w_out"])  # type: ignore[arg-type]


def plain_situ(row: torch.Tensor) -> torch.Tensor:
    gate, up = row[: len(row) // 2], row[len(row) // 2 :]
    return 4 * torch.tanh(gate / 4) / (1 + torch.exp(-gate)) * 25 * torch.tanh(up / 25)


class Decoder:
    """TINY one token at a time from a dict of weights: state matrices, absorbed attention, chosen experts only."""

    def __init__(self, w: dict[str, torch.Tensor]) -> None:
        self.w = w
        self.conv = {i: [torch.zeros(3 * 16, dtype=F64)] * 3 for i in range(4)}
        self.state = {(i, h): torch.zeros(8, 8, dtype=F64) for i in range(4) for h in range(2)}
        self.cache: list[torch.Tensor] = []

    def kda(self, i: int, x: torch.Tensor) -> torch.Tensor:
        w = {k.removeprefix(f"layers.{i}.kda."): v for k, v in self.w.items()}
        row = w["w_in"] @ x
        self.conv[i] = [*self.conv[i][-3:], row[:48]]
        z = sum(past * w["conv_w"][:, j] for j, past in enumerate(self.conv[i]))
        z = z * torch.sigmoid(z)  # type: ignore[arg-type]
        gate = w["f_b"] @ row[64:72]
        out = []
        for h in range(2):
            own = slice(8 * h, 8 * h + 8)
            q, k, v = z[:16][own], z[16:32][own], z[32:][own]
            q, k = (y / torch.sqrt((y * y).sum() + 1e-6) for y in (q, k))
            decay = torch.exp(-5 / (1 + torch.exp(-torch.exp(w["a_log"][h]) * (gate[own] + w["dt_bias"][own]))))
            state = self.state[i, h] * decay
            state = state + torch.outer(torch.sigmoid(row[72 + h]) * (v - state @ k), k)
            self.state[i, h] = state
            out.append(norm(state @ q / math.sqrt(8), w["w_onorm"]) * torch.sigmoid(row[48:64][own]))
        return w["w_o"] @ torch.cat(out)

    def mla(self, i: int, x: torch.Tensor) -> torch.Tensor:
        w = {k.removeprefix(f"layers.{i}.mla."): v for k, v in self.w.items()}
        row = w["w_in"] @ x
        query = (w["w_qb"] @ norm(row[:16], w["w_qn"])).view(2, 12)
        self.cache.append(torch.cat((norm(row[16:32], w["w_kvn"]), row[32:36])))
        rows = torch.stack(self.cache)
        out = []
        for h in range(2):
            absorbed = torch.cat((query[h, :8] @ w["w_uk"][h], query[h, 8:]))
            share = torch.softmax(rows @ absorbed / math.sqrt(12), dim=0)
            out.append((share @ rows[:, :16]) @ w["w_uv"][h])
        return w["w_o"] @ (torch.cat(out) * torch.sigmoid(row[36:]))

    def moe(self, i: int, x: torch.Tensor) -> torch.Tensor:
        w = {k.removeprefix(f"layers.{i}.moe."): v for k, v in self.w.items()}
        score = torch.sigmoid(w["w_router"] @ x)
        order = sorted(range(4), key=lambda e: -float(score[e] + w["bias"][e]))[:2]
        low = w["w_latent"] @ x
        routed = sum(score[e] / score[order].sum() * (w["w2"][e] @ plain_situ(w["w13"][e] @ low)) for e in order)
        shared = w["w_shared_down"] @ plain_situ(w["w_shared_gate_up"] @ x)
        return w["w_up"] @ norm(routed, w["gamma"]) + shared  # type: ignore[arg-type]

    def __call__(self, token: int) -> torch.Tensor:
        """Logits after this token. Blocks of two layers: snapshots at layers 0 and 2."""
        w = self.w
        prefix, blocks = w["embed"][token], []
        delta = torch.zeros_like(prefix)
        for i in range(4):
            prefix = prefix + delta
            a = plain_mix([*blocks, prefix], w, f"layers.{i}.pre")
            o = self.mla(i, a) if i == 3 else self.kda(i, a)
            if i in (0, 2):
                blocks.append(prefix)
                prefix = o
            else:
                prefix = prefix + o
            m = plain_mix([*blocks, prefix], w, f"layers.{i}.post")
            if i == 0:
                delta = w["layers.0.dense.w_down"] @ plain_situ(w["layers.0.dense.w_gate_up"] @ m)
            else:
                delta = self.moe(i, m)
        return w["lm_head"] @ plain_mix([*blocks, prefix + delta], w, "final")


def shaken(compute: torch.dtype = F64) -> NanoModel:
    """TINY in float64 with every weight away from its initial value."""
    model = NanoModel(TINY, compute=compute, seed=3).to(F64)
    gen = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor += 0.3 * torch.randn(tensor.shape, generator=gen, dtype=F64)
    return model


def test_the_model_equals_decoding_one_token_at_a_time() -> None:
    model, ids = shaken(), torch.randint(1, 512, (2, 70), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        whole = model.head(model(ids, quantise=False)[0])
    for row in range(2):
        decoder = Decoder(dict(model.state_dict()))
        for t in range(70):
            torch.testing.assert_close(whole[row, t], decoder(int(ids[row, t])), rtol=1e-8, atol=1e-9)


def test_later_tokens_and_padding_change_nothing_before_them() -> None:
    model, ids = shaken(), torch.randint(1, 512, (1, 80), generator=torch.Generator().manual_seed(6))
    other = ids.clone()
    other[:, 50:] = 0
    with torch.no_grad():
        first, second = (model(x, quantise=True)[0][:, :50] for x in (ids, other))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
