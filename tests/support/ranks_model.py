"""An alpha-beta model of the exchange: fitted to the measured points of two GPUs, and what it says of more.

A call takes alpha + beta * bytes, with bytes those that a rank receives. One-shot: every peer sends a whole partial,
(T - 1) * m bytes, in one step. Two-shot: sums of a share, then gathering them, 2 * (T - 1) / T * m bytes in two steps;
the second costs a hop more. m = tokens * hidden * 2. alpha holds the launch, a hop and what does not depend on size;
beta sending, reading and adding a byte. Fitted by least squares of the relative error. Assumed, not measured: that both
stay what they are with more peers (a switch gives every GPU its full rate to any of them), and HOP_US.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from support.kernel_tables import table
from support.ranks_measured import record
from support.vllm_served import wrapped

HIDDEN = 7168
HOP_US = 0.7  # assumed: half of a flag's round trip between two H200 of one host, about 1.35 us
HOPS = (0.4, 0.7, 1.5)
MORE = (4, 8, 16)  # ranks

Points = Sequence[tuple[int, float]]  # (tokens, us) of one-shot at T = 2


@dataclass(frozen=True)
class Model:
    alpha: float  # us
    beta: float  # us a byte received

    def one_shot(self, ranks: int, tokens: int) -> float:
        return self.alpha + self.beta * (ranks - 1) * message(tokens)

    def two_shot(self, ranks: int, tokens: int, hop: float = HOP_US) -> float:
        return self.alpha + hop + self.beta * 2 * (ranks - 1) / ranks * message(tokens)

    def crossing(self, ranks: int, hop: float = HOP_US) -> float:
        """Tokens from which two-shot is the faster one; infinite at two ranks, where both receive the same bytes."""
        saved = self.beta * ((ranks - 1) - 2 * (ranks - 1) / ranks) * message(1)
        return hop / saved if saved > 0 else float("inf")


def message(tokens: int) -> int:
    """Bytes of one partial."""
    return tokens * HIDDEN * 2


def fit(points: Points) -> Model:
    """Least squares of (predicted - measured) / measured, at T = 2. Raises ValueError for fewer than two sizes."""
    if len({tokens for tokens, _ in points}) < 2:
        raise ValueError("two sizes are needed: alpha and beta are two numbers")
    rows = [(1 / us, message(tokens) / us) for tokens, us in points]
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(r[i] for r in rows) for i in (0, 1))
    det = aa * bb - ab * ab
    return Model((a * bb - b * ab) / det, (aa * b - ab * a) / det)


def measured() -> list[tuple[int, float]]:
    return [(p.tokens, p.us["candidate"]) for p in record().points if p.column == "graph"]


def foretold(points: Points) -> dict[int, float]:
    """Each point from a model that was fitted to all others."""
    return {n: fit([p for p in points if p[0] != n]).one_shot(2, n) for n, _ in points}


def region(*_: object) -> str:
    points = measured()
    model, told = fit(points), foretold(points)
    heads = ["tokens:", "T = 2 measured:", "foretold:", "off by:"]
    heads += [f"T = {ranks} {kind}:" for ranks in MORE for kind in ("one-shot", "two-shot")]
    rows = []
    for tokens, us in points:
        cells = [str(tokens), f"{us:.2f}", f"{told[tokens]:.2f}", f"{round(100 * (told[tokens] / us - 1)):+d} %"]
        for ranks in MORE:
            both = model.one_shot(ranks, tokens), model.two_shot(ranks, tokens)
            cells += [f"**{x:.1f}**" if x == min(both) else f"{x:.1f}" for x in both]
        rows.append(cells)
    return "\n" + wrapped(_said(model)) + "\n" + table(heads, rows) + "\n"


def _said(model: Model) -> str:
    rate = 1e-3 / model.beta  # GB/s
    start = f"alpha {model.alpha:.2f} µs, beta {1e6 * model.beta:.2f} µs/MB ({rate:.0f} GB/s). Two-shot pays from"
    cells = [
        f"{ranks} ranks: {' / '.join(f'{model.crossing(ranks, hop):.1f}' for hop in HOPS)} tokens" for ranks in MORE
    ]
    return f"{start} (hop {' / '.join(map(str, HOPS))} µs) " + ", ".join(cells) + "; at 2 ranks never."
