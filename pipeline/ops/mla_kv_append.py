"""mla_kv_append: the new cached row of each token: norm of the latent, paged write in the cache's number format.

    kvc = bf16(rms_norm(p[:, kv], eps) * w_kvn)                kv: 512 columns from q_lora on
    row = store([kvc ‖ p[:, k_pe]] * k_scale_inv)              k_pe: the next 64; neither normed nor rotated
    if slots[t] >= 0: cache[slots[t] // page, slots[t] % page] <- row

`store` is bf16() at cache=bf16 and e4m3, saturating at +-448, at cache=e4m3; k_scale_inv multiplies in both (1 where a
deployment has no scale). Slots are distinct; -1 (padding) writes nothing. Every other row of the cache stays byte for
byte. The cache's first stride is free and its number of blocks is known at run time; the page is a dims symbol.

Judging: the rows written are judged by the format's rule among themselves (a rule over the whole cache would be
diluted by what nobody wrote), all others by their bytes; both are hard rules.
Source: vLLM 0.33's Kimi K3 attention (absorbed MLA without rotation).
"""

from typing import ClassVar

import torch

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.rules import Codes
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import mla_math
from kgen.ops.mla_math import (
    BYTES,
    CACHES,
    DTYPES,
    LATENT,
    PAGED,
    ROW,
    Compile,
    cast,
    fused,
    number,
    rms_norm,
    rounding,
    stored,
    tensor,
    widened,
)
from kgen.ops.pack import PACK, RMS_EPS
from kgen.records import Problem

SHAPE = ("blocks", "page", "row")


def _new_rows(
    p: torch.Tensor, w_kvn: torch.Tensor, at: int, eps: float, scale: float, dtype: torch.dtype
) -> torch.Tensor:
    latent = rms_norm(p[:, at : at + LATENT].float(), w_kvn, eps).to(torch.bfloat16)
    return cast(torch.cat([latent, p[:, at + LATENT : at + ROW]], dim=-1).float() * scale, dtype)


def _write(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Rows into their slots, in place and without a look at the data.

    Padding repeats the first row that is written, or writes slot 0 back as it was when there is none.
    """
    padding, page = slots < 0, cache.shape[1]
    first, none = (~padding).int().argmax(0, keepdim=True), padding.all()
    instead = torch.where(none, cache[0, :1], rows.index_select(0, first))
    where = torch.where(padding, torch.where(none, 0, slots.index_select(0, first)), slots)
    cache[where // page, where % page] = torch.where(padding[:, None], instead, rows)


class MlaKvAppend(Op):
    name: ClassVar = "mla_kv_append"
    title: ClassVar = "MLA cache row: norm, store, paged write"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    shared: ClassVar = (mla_math,)
    dims: ClassVar = PAGED
    runtime_dims: ClassVar = ("blocks",)
    tensors: ClassVar = (
        TensorSpec("p", "bf16", ("tokens", "in_width"), Role.IN, "projected row; columns kv_at..gate_at-1 are read"),
        TensorSpec("w_kvn", "bf16", ("latent",), Role.WEIGHT, "norm weights"),
        TensorSpec("slots", "i64", ("tokens",), Role.IN, "row of the cache, -1: write nothing", padding=-1),
        TensorSpec("cache", "bf16", SHAPE, Role.STATE, "paged rows", only=("cache", ("bf16",)), pitched=True),
        TensorSpec(
            "cache", "e4m3", SHAPE, Role.STATE, "paged rows", only=("cache", ("e4m3",)), pitched=True, rule=Codes()
        ),
    )
    scalars: ClassVar = (
        ScalarSpec("eps", "f32", "added to the mean square", RMS_EPS, other=1.0),
        ScalarSpec("k_scale_inv", "f32", "factor of the stored row", 1.0, other=0.5),
    )
    axes: ClassVar = {"cache": CACHES}
    families: ClassVar = (
        Family("normal", "unit normal rows, distinct slots anywhere"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other row zero"),
        Family("tiny", "rows times 2^-40: eps decides the norm"),
        Family("large", "rows times 2^10: the un-normed key saturates e4m3"),
        Family("signed_zero", "half of the values are -0"),
        Family("scaled", "k_scale_inv = 1.375"),
        Family("padding", "every other slot is -1, at one token its only one"),
        Family("run", "consecutive slots over the end of a block, as the tokens of one verify step have them"),
        Family("edges", "the first and the last row of the cache and of a block"),
        Family("again", "64 steps that write the same slots", steps=64),
    )
    floor: ClassVar = 4e-3
    mutable_inputs: ClassVar = ("p",)
    sweep: ClassVar = {
        "tokens": "1-8, 16, 32, 64 and 12, 24, 48 padded",
        "cache": "bf16, e4m3",
        "page": "64; 16, 32 and 128 are dims entries of their own",
    }

    def sizes(self, problem: Problem) -> dict[str, int]:
        return {**super().sizes(problem), "blocks": 2 + problem.tokens // 4}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        s, gen = self.sizes(problem), generator(seed, device)
        p = rows((s["tokens"], s["in_width"]), family, gen)
        w_kvn = 1 + normal((s["latent"],), gen, 0.25)
        cache = normal((s["blocks"], s["page"], s["row"]), gen, 0.5)
        return {
            "p": p.to(torch.bfloat16),
            "w_kvn": w_kvn.to(torch.bfloat16),
            "slots": self._slots(s, family, generator(0, device) if family == "again" else gen),
            "cache": cache.to(DTYPES[problem.axes["cache"]]),
            "eps": RMS_EPS,
            "k_scale_inv": 1.375 if family == "scaled" else 1.0,
        }

    def _slots(self, s: dict[str, int], family: str, gen: torch.Generator) -> torch.Tensor:
        tokens, page, total = s["tokens"], s["page"], s["blocks"] * s["page"]
        slots = torch.randperm(total, generator=gen, device=gen.device)[:tokens]
        if family == "padding":
            slots[::2] = -1
        elif family == "run":
            slots = page - (tokens + 1) // 2 + torch.arange(tokens, device=gen.device)
        elif family == "edges":
            wanted = torch.tensor([0, total - 1, page - 1, page], device=gen.device)
            others = slots[~torch.isin(slots, wanted)]
            slots = torch.cat([wanted, others])[:tokens]
        return slots

    def stock(self, problem: Problem, compile: Compile = None) -> StockFn:
        new_rows = fused(_new_rows, compile)
        dtype, at = DTYPES[problem.axes["cache"]], self.sizes(problem)["kv_at"]

        def run(values: Values) -> dict[str, torch.Tensor]:
            cache, slots = tensor(values, "cache"), tensor(values, "slots")
            row = new_rows(
                tensor(values, "p"),
                tensor(values, "w_kvn"),
                at,
                number(values, "eps"),
                number(values, "k_scale_inv"),
                dtype,
            )
            # an engine keeps its cache in place: a timed call does not pay for a copy, others may need the old rows
            new = cache if compile else cache.clone()
            _write(new.view(torch.uint8), slots, row.view(torch.uint8))
            return {"cache": new}

        return run

    def _rows(self, problem: Problem, values: Values, rounded: bool) -> torch.Tensor:
        """float64 [tokens, 576]: what each token would write."""
        at, p = self.sizes(problem)["kv_at"], tensor(values, "p").double()
        latent = rounding(rounded)(rms_norm(p[:, at : at + LATENT], tensor(values, "w_kvn"), number(values, "eps")))
        row = torch.cat([latent, p[:, at + LATENT : at + ROW]], dim=-1) * number(values, "k_scale_inv")
        return stored(row, problem, rounded)

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        cache = widened(tensor(values, "cache")).clone()
        _write(cache, tensor(values, "slots"), self._rows(problem, values, rounded))
        return {"cache": cache}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """Cache rows that no slot names stay byte for byte; the rows written pass the cache's rule by themselves."""
        before, after = (t.reshape(-1, ROW) for t in (tensor(values, "cache"), got["cache"]))
        slots = tensor(values, "slots")
        used = slots >= 0
        written = slots[used]
        same = (before.view(torch.uint8) == after.view(torch.uint8)).all(-1)
        same[written] = True
        breaches = []
        if not bool(same.all()):
            row = int((~same).nonzero()[0, 0])
            page = tensor(values, "cache").shape[1]
            breaches.append(f"row {row % page} of block {row // page} has changed, and no slot names it")
        if bool(used.any()):
            spec = next(t for t in self.outputs(problem) if t.name == "cache")
            stock = self.stock(problem)(values)["cache"].reshape(-1, ROW)[written]
            rounded, true = (self._rows(problem, values, r)[used] for r in (True, False))
            complaint = self.rule(spec).judge(after[written], stock, rounded, true, 1).complaint
            breaches += [f"the rows written: {complaint}"] if complaint else []
        return breaches

    def cost(self, problem: Problem) -> Cost:
        return self._cost(problem, problem.tokens)

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        return self._cost(problem, int((tensor(values, "slots") >= 0).sum()))

    def _cost(self, problem: Problem, rows_written: int) -> Cost:
        moved = rows_written * ROW * (2 + BYTES[problem.axes["cache"]])
        return Cost(bytes=moved + 2 * LATENT + 8 * problem.tokens, flops=rows_written * (4 * LATENT + ROW))
