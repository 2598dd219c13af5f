"""mla_q: the absorbed query of MLA: norm of the low-rank row, q_b, W_UK, stored in the cache's number format.

    qc    = bf16(rms_norm(p[:, :q_lora], eps) * w_qn)
    Q     = bf16(qc @ w_qb.T)                 [tokens, heads, 192] = nope 128 ‖ pe 64; no rotation anywhere
    ql    = bf16(Q_nope[h] @ w_uk[h])         [tokens, heads, 512]
    query = store([ql ‖ Q_pe] * q_scale_inv)  [tokens, heads, 576]

`store` is bf16() at cache=bf16 and e4m3, saturating at +-448, at cache=e4m3; q_scale_inv multiplies in both (1 where a
deployment has no scale). Accumulation is float32 or better. `p` is the projected row q_a ‖ kv ‖ k_pe ‖ gate, whole;
this op reads its first q_lora columns.
Source: vLLM 0.33's Kimi K3 attention (absorbed MLA without rotation). Not covered: the cache write
(mla_kv_append).
"""

from typing import ClassVar

import torch
import torch.nn.functional as F

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.rules import Codes
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import mla_math
from kgen.ops.mla_math import (
    BYTES,
    CACHES,
    DTYPES,
    NOPE,
    ROW,
    SIZES,
    Compile,
    cast,
    fused,
    number,
    rms_norm,
    rounding,
    stored,
    tensor,
)
from kgen.ops.pack import PACK, RMS_EPS
from kgen.records import Problem


def _norm(p: torch.Tensor, w_qn: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(p[:, : w_qn.shape[0]].float(), w_qn, eps).to(torch.bfloat16)


def _store(ql: torch.Tensor, pe: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    return cast(torch.cat([ql, pe], dim=-1).float() * scale, dtype)


class MlaQ(Op):
    name: ClassVar = "mla_q"
    title: ClassVar = "MLA query: norm, q_b, absorbed W_UK, stored as the cache is"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    shared: ClassVar = (mla_math,)
    dims: ClassVar = SIZES
    tensors: ClassVar = (
        TensorSpec("p", "bf16", ("tokens", "in_width"), Role.IN, "projected row; columns 0..q_lora-1 are read"),
        TensorSpec("w_qn", "bf16", ("q_lora",), Role.WEIGHT, "norm weights"),
        TensorSpec("w_qb", "bf16", ("qb_rows", "q_lora"), Role.WEIGHT, "rows by head: 128 nope, then 64 pe"),
        TensorSpec("w_uk", "bf16", ("heads", "nope", "latent"), Role.WEIGHT, "absorbed key projection"),
        TensorSpec(
            "query", "bf16", ("tokens", "heads", "row"), Role.OUT, "512 latent, then 64 pe", only=("cache", ("bf16",))
        ),
        TensorSpec(
            "query",
            "e4m3",
            ("tokens", "heads", "row"),
            Role.OUT,
            "512 latent, then 64 pe",
            only=("cache", ("e4m3",)),
            rule=Codes(),
        ),
    )
    scalars: ClassVar = (
        ScalarSpec("eps", "f32", "added to the mean square", RMS_EPS, other=1.0),
        ScalarSpec("q_scale_inv", "f32", "factor of the stored query", 1.0, other=0.5),
    )
    axes: ClassVar = {"cache": CACHES}
    families: ClassVar = (
        Family("normal", "unit normal rows, weights N(0, 1/K)"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero"),
        Family("tiny", "rows times 2^-40: eps decides the norm"),
        Family("large", "rows times 2^10"),
        Family("signed_zero", "half of the values are -0"),
        Family("scaled", "q_scale_inv = 1.375: a factor that is not a power of two"),
        Family("saturated", "q_scale_inv = 300: a tenth of the e4m3 codes are +-448"),
    )
    floor: ClassVar = 4e-3  # four roundings
    mutable_inputs: ClassVar = ("p",)
    sweep: ClassVar = {"tokens": "1-8, 16, 32, 64 and 12, 24, 48 padded", "cache": "bf16, e4m3"}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        s, gen = self.sizes(problem), generator(seed, device)
        values = {
            "p": rows((s["tokens"], s["in_width"]), family, gen),
            "w_qn": 1 + normal((s["q_lora"],), gen, 0.25),
            "w_qb": normal((s["qb_rows"], s["q_lora"]), gen, s["q_lora"] ** -0.5),
            "w_uk": normal((s["heads"], s["nope"], s["latent"]), gen, s["nope"] ** -0.5),
        }
        scale = {"scaled": 1.375, "saturated": 300.0}.get(family, 1.0)
        return {**{k: v.to(torch.bfloat16) for k, v in values.items()}, "eps": RMS_EPS, "q_scale_inv": scale}

    def stock(self, problem: Problem, compile: Compile = None) -> StockFn:
        norm, store = fused(_norm, compile), fused(_store, compile)
        dtype = DTYPES[problem.axes["cache"]]

        def run(values: Values) -> dict[str, torch.Tensor]:
            p, w_uk = tensor(values, "p"), tensor(values, "w_uk")
            qc = norm(p, tensor(values, "w_qn"), number(values, "eps"))
            full = F.linear(qc, tensor(values, "w_qb")).view(p.shape[0], w_uk.shape[0], -1)
            ql = torch.bmm(full[..., :NOPE].transpose(0, 1), w_uk).transpose(0, 1)
            return {"query": store(ql, full[..., NOPE:], number(values, "q_scale_inv"), dtype)}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        r = rounding(rounded)
        p, w_qn, w_qb, w_uk = (tensor(values, n).double() for n in ("p", "w_qn", "w_qb", "w_uk"))
        qc = r(rms_norm(p[:, : w_qn.shape[0]], w_qn, number(values, "eps")))
        full = r(qc @ w_qb.T).view(p.shape[0], w_uk.shape[0], -1)
        ql = r(torch.einsum("bhn,hnl->bhl", full[..., :NOPE], w_uk))
        query = torch.cat([ql, full[..., NOPE:]], dim=-1) * number(values, "q_scale_inv")
        return {"query": stored(query, problem, rounded)}

    def cost(self, problem: Problem) -> Cost:
        s = self.sizes(problem)
        weights = s["qb_rows"] * s["q_lora"] + s["heads"] * s["nope"] * s["latent"]
        per_token = 2 * s["q_lora"] + BYTES[problem.axes["cache"]] * s["heads"] * ROW
        return Cost(bytes=2 * (weights + s["q_lora"]) + s["tokens"] * per_token, flops=2 * s["tokens"] * weights)
