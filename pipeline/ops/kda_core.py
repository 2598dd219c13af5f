"""kda_core: Kimi Delta Attention behind its input projection: convolution, decay gate, delta rule, gated norm.

Rows p [tokens, N] hold q[d] k[d] v[d] g[d] f_a[128] beta[H] pad; the formulas are in kgen.ops.kda_math, with

    rg = bf16(f_a f_b^T),  y = bf16(...),  all else float32 or better;  S stays float32, conv holds raw bf16 inputs

One pool of state slots; slot 0 belongs to nobody. Axis q is the number of new tokens of a request.

q = 1: token b reads and writes conv[slots[b]] (the last 3 inputs, oldest first) and s[slots[b]]. slots[b] <= 0 marks
a padding row: y[b] is exactly 0 and no state is touched.

q = 4, 8 (verify): token t of request b is row b q + t. With n = accepted[b] in 1..q, how many tokens of the last step
were kept: the start state is s[slots[b, n-1]], the convolution starts from conv[slots[b, 0], :, n-1 : n+2], the tokens
run one after the other, s[slots[b, t]] becomes the state after token t, and conv[slots[b, 0]] becomes the last two of
those three taps with the q new raw inputs behind them. So the window's entries n-1 .. n+1 are the taps after any n
tokens, and conv[slots[b, 1:]] is not touched. q = 1 is the same rule with n = 1. slots[b, 0] <= 0 marks a padding
request: its q rows of y are exactly 0, no state is touched, accepted[b] means nothing. Slots of a call are distinct.

S is judged slot by slot, the worst one counts. The rounded reference keeps S in float64: what a kernel stores in
float32 is compared with that, so storing is part of a kernel's error, for stock as for candidates.

Inputs lie on coarse grids (kgen.ops.kda_inputs): every sum of f_a f_b^T is exact in float32, in any order. So no
implementation lands on the other side of the bf16 rounding of rg, which alone would move D by up to some percent.

Source: vLLM 0.33, KDA decode and its speculative window. Not covered: a convolution bias (K3 has none), prefill.
"""

from collections.abc import Callable
from typing import ClassVar, cast

import torch
import torch.nn.functional as F

from kgen.contract.families import generator
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.quant import round_bf16
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import kda_inputs, kda_math, kda_rules
from kgen.ops.kda_inputs import HEAD, RANK, TAPS, WARM_STEPS, constants_of, tensor, weights_of
from kgen.ops.kda_rules import WorstSlot
from kgen.ops.pack import PACK, RMS_EPS
from kgen.records import Problem

SPARE_SLOTS = 3  # slot 0, and two that no request owns
HEADS = {"k3-tp8": 12, "k3-tp16": 6, "nano": 2}
VERIFY = ("4", "8")


def _requests(values: Values, q: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """p [requests, q, N]; slots [requests, q], 0 for padding; where the taps start [requests]; live or padding."""
    slots = tensor(values, "slots").reshape(-1, q).long()
    live = slots[:, 0] > 0
    start = torch.zeros_like(slots[:, 0]) if q == 1 else tensor(values, "accepted").long().clamp(1, q) - 1
    p = tensor(values, "p")
    return p.reshape(-1, q, p.shape[-1]), torch.where(live[:, None], slots, 0), start, live


def _taps(windows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """The TAPS entries of each window [requests, 3d, q + 2] from its `start` on."""
    if windows.shape[-1] == TAPS:
        return windows  # one token a request: there is nothing to choose
    at = start[:, None] + torch.arange(TAPS, device=start.device)
    return windows.gather(-1, at[:, None].expand(-1, windows.shape[1], -1))


class KdaCore(Op):
    name: ClassVar = "kda_core"
    title: ClassVar = "KDA: short convolution, decay gate, delta-rule state update, gated norm"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {name: kda_inputs.widths(heads) for name, heads in HEADS.items()}
    tensors: ClassVar = (
        TensorSpec("p", "bf16", ("tokens", "columns"), Role.IN, "projected rows: q, k, v, g, f_a, beta, pad"),
        TensorSpec(
            "conv_w", "f32", ("channels", TAPS + 1), Role.WEIGHT, "convolution, weight of the oldest input first"
        ),
        TensorSpec("f_b", "bf16", ("width", RANK), Role.WEIGHT, "decay gate, up projection"),
        TensorSpec("a_log", "f32", ("heads",), Role.WEIGHT, "log of the gate's slope"),
        TensorSpec("dt_bias", "f32", ("width",), Role.WEIGHT, "decay gate, bias"),
        TensorSpec("w_onorm", "bf16", (HEAD,), Role.WEIGHT, "norm weights of a head's output"),
        TensorSpec("slots", "i32", ("tokens",), Role.IN, "state slot, <= 0: padding", only=("q", ("1",)), padding=0),
        TensorSpec(
            "slots",
            "i32",
            ("requests", "each"),
            Role.IN,
            "state slot after each token; first one <= 0: padding",
            only=("q", VERIFY),
            padding=0,
        ),
        TensorSpec(
            "accepted", "i32", ("requests",), Role.IN, "tokens kept of the last step", only=("q", VERIFY), padding=0
        ),
        TensorSpec(
            "conv", "bf16", ("state_slots", "channels", "taps"), Role.STATE, "raw inputs", exact=True, pitched=True
        ),
        TensorSpec(
            "s",
            "f32",
            ("state_slots", "heads", HEAD, HEAD),
            Role.STATE,
            "state [v, k]",
            rule=WorstSlot(2e-4, drift=1e-3),  # of a fast exponential; 1e-3 after many steps
            pitched=True,
        ),
        TensorSpec("y", "bf16", ("tokens", "width"), Role.OUT, "this rank's heads, gated"),
    )
    scalars: ClassVar = (
        ScalarSpec("lower_bound", "f32", "least ln D", -5.0, other=-1.0),
        ScalarSpec("scale", "f32", "factor of q", HEAD**-0.5, other=1.0),
        ScalarSpec("eps_qk", "f32", "added to the square sums of q and k", 1e-6, other=1.0),
        ScalarSpec("eps", "f32", "added to the mean square of a head's output", RMS_EPS, other=1.0),
    )
    axes: ClassVar = {"q": ("1", *VERIFY)}
    families: ClassVar = (
        Family("normal", "unit normal rows and states; slots in every family permuted, with gaps"),
        Family("warm", f"states and windows that {WARM_STEPS} earlier tokens left"),
        Family("drift", "256 steps from a zero state", steps=256),
        Family("long_memory", "64 steps with D in 0.8..1, mostly above 0.98", steps=64),
        Family("fast_decay", "8 steps with D near e^-5", steps=8),
        Family("null_slots", "every other request is padding, with slot 0 or -1"),
        Family("zero_rows", "every other row zero, empty windows: k = 0"),
        Family("outlier", "one channel in 256 times 30"),
        Family("tiny", "rows times 2^-40: eps_qk decides the norms"),
        Family("large", "rows times 2^10: gates saturate"),
        Family("signed_zero", "half of the values are -0"),
        Family("beta_saturated", "beta -40 or 40: nothing is written, or all of it"),
    )
    floor: ClassVar = 4e-3
    runtime_dims: ClassVar = ("state_slots",)
    sweep: ClassVar = {"q": "1, 4, 8 tokens a request", "tokens": "all bins that whole requests fill, and 12, 24, 48"}
    shared: ClassVar = (kda_math, kda_inputs, kda_rules)
    chain: ClassVar = None
    mutable_inputs: ClassVar = ("p",)

    def refuses(self, problem: Problem) -> str:
        q = int(problem.axes["q"])
        return f"{problem.tokens} tokens are not whole requests of {q}" if problem.tokens % q else ""

    def sizes(self, problem: Problem) -> dict[str, int]:
        q, tokens = int(problem.axes["q"]), problem.tokens
        more = {"each": q, "requests": tokens // q, "taps": TAPS + q - 1, "state_slots": tokens + SPARE_SLOTS}
        return {**super().sizes(problem), **more}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        steps = next((f.steps for f in self.families if f.name == family), 1)
        scalars: Values = {s.name: float(s.sample) for s in self.scalars}
        gen = generator(seed, device)
        slots = generator(0, device) if steps > 1 else gen  # a request keeps its slots from step to step
        return kda_inputs.draw(self.sizes(problem), scalars, family, gen, slots)

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        q = int(problem.axes["q"])
        advance = compile(kda_math.advance, dynamic=False) if compile else kda_math.advance

        def run(values: Values) -> dict[str, torch.Tensor]:
            """Padding writes slot 0 back as it was: shapes and addresses do not depend on the data."""
            p, slots, start, live = _requests(values, q)
            conv, state = tensor(values, "conv"), tensor(values, "s")
            width = tensor(values, "dt_bias").shape[0]
            rg = F.linear(kda_math.f_a_columns(p, width, RANK), tensor(values, "f_b"))
            taps = _taps(conv.index_select(0, slots[:, 0]), start).float()
            first = state.index_select(0, slots.gather(1, start[:, None])[:, 0])
            weights, constants = weights_of(values, torch.float32), constants_of(values)
            got = advance(p.float(), rg.float(), taps, first, weights, constants)
            y, history, states = cast(tuple[torch.Tensor, torch.Tensor, torch.Tensor], got)
            window = torch.where(live[:, None, None], history[..., 1:].to(torch.bfloat16), conv[:1])
            states = torch.where(live[:, None, None, None, None], states, state[:1])
            # an engine keeps its pool in place: a timed call does not pay for a copy, others may need the old states
            write = torch.Tensor.index_copy_ if compile else torch.Tensor.index_copy
            return {
                "y": torch.where(live[:, None, None], y, 0.0).flatten(0, 1).to(torch.bfloat16),
                "conv": write(conv, 0, slots[:, 0], window),
                "s": write(state, 0, slots.flatten(), states.flatten(0, 1)),
            }

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        """Padding writes slot 0 back as it was: nothing waits for the device to learn which rows are padding."""
        rows, slots, start, live = _requests(values, int(problem.axes["q"]))
        p, at = rows.double(), slots[:, 0]
        conv, state = tensor(values, "conv").double(), tensor(values, "s").double()
        weights, constants = weights_of(values, torch.float64), constants_of(values)
        first = state[slots.gather(1, start[:, None])[:, 0]]
        rg = kda_math.gate_rows(p, weights, rounded)
        out, history, states = kda_math.advance(p, rg, _taps(conv[at], start), first, weights, constants)
        y = torch.where(live[:, None, None], round_bf16(out) if rounded else out, 0.0)
        window = torch.where(live[:, None, None], history[..., 1:], conv[:1])
        states = torch.where(live[:, None, None, None, None], states, state[:1])
        return {
            "y": y.flatten(0, 1),
            "conv": conv.index_copy(0, at, window),
            "s": state.index_copy(0, slots.flatten(), states.flatten(0, 1)),
        }

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """y of a padding row is exactly 0. Slots of conv and S that no request of the call owns stay byte for byte."""
        q = int(problem.axes["q"])
        _, slots, _, live = _requests(values, q)
        padding_rows = got["y"].reshape(*slots.shape, -1)[~live]
        found = ["y of a padding row is not exactly 0"] if bool((padding_rows != 0).any()) else []
        for name, bits, owned in (("conv", torch.int16, slots[live, 0]), ("s", torch.int32, slots[live].flatten())):
            before, after = tensor(values, name), got[name]
            same = (before.view(bits) == after.view(bits)).flatten(1).all(-1)
            same[owned] = True
            if changed := (~same).nonzero().flatten().tolist():
                found.append(f"{name} slot {changed[0]} has changed, which no request of the call owns")
        return found

    def cost(self, problem: Problem) -> Cost:
        return self._cost(problem, self.sizes(problem)["requests"])

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        """Padding rows cost their zeros only."""
        return self._cost(problem, int(_requests(values, int(problem.axes["q"]))[3].sum()))

    def _cost(self, problem: Problem, requests: int) -> Cost:
        s = self.sizes(problem)
        d, q = s["width"], s["each"]
        tokens = requests * q
        weights = 2 * d * RANK + 48 * d
        states = requests * (4 * d * HEAD * (1 + q) + 6 * d * (TAPS + s["taps"]))  # S read once, written q times
        rows_moved = tokens * 2 * (4 * d + RANK + s["heads"]) + s["tokens"] * 2 * d
        return Cost(bytes=weights + states + rows_moved, flops=tokens * (2 * RANK * d + 8 * HEAD * d))
