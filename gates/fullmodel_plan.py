"""What the full-model gate runs: batches of sequences at token bins, drawn from seeds. No torch at import.

A batch decodes given tokens (teacher forcing), so that stock, candidate and float64 see the same history, and some
batches generate freely afterwards. Not covered: which numbers decide (fullmodel_rules.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kgen.contract.op import Op

if TYPE_CHECKING:
    import torch

# Rows a batch: medians of 256 rows repeat within 5 %; on a CPU the gate only shows that its rules separate.
ROWS = {"cuda": 256, "cpu": 96}
MIN_STEPS = 16  # also for wide batches: what one router decision upsets must not last for all of a batch's steps
PROMPT = 4  # given tokens before free generation
GENERATE = {"cuda": 32, "cpu": 12}
GENERATING = (8, 64)  # bins that also generate freely: one narrow, one wide
REPLAYS = 4  # graph replays under the profiler, a round
ROUNDS = 4  # at most: the profiler may lose records; one round must be exact, none may show more


@dataclass(frozen=True)
class Batch:
    """`count` sequences in a bin of `tokens` rows, the rest padding. `generate` greedy steps (0: none);
    `other` is the bin of another legitimate batch composition for the same sequences (0: none)."""

    SCHEMA: ClassVar[str] = "kgen.model-batch/1"
    tokens: int
    count: int
    steps: int
    generate: int = 0
    other: int = 0

    @property
    def name(self) -> str:
        return f"t{self.tokens}" if self.count == self.tokens else f"t{self.tokens}/n{self.count}"

    @property
    def decoded(self) -> int:
        """Steps that a run of this batch takes in each mode."""
        return self.steps + (PROMPT - 1 + self.generate if self.generate else 0)


@dataclass(frozen=True)
class Plan:
    """Everything that both sides run, and nothing of what they should find."""

    SCHEMA: ClassVar[str] = "kgen.model-plan/1"
    op: str
    dims: str
    arch: str
    device: str
    weight_seed: int
    token_seed: int
    batches: tuple[Batch, ...]
    graph: bool


def plan(op: Op, dims: str, arch: str, device: str, bins: Iterable[int], seeds: tuple[int, int], brief: bool) -> Plan:
    """The batches for the token bins that were built. `brief`: three bins, no padding, no generation.

    Raises ValueError without any bin.
    """
    known = sorted(set(bins))
    if not known:
        raise ValueError(f"no token bin of {op.name} was built for {dims} on {arch}")
    kind = "cuda" if device.startswith("cuda") else "cpu"
    counts = [(b, b) for b in few_bins(known)] if brief else [(b, b) for b in known] + _padded(op, known)
    batches = tuple(_batch(op, tokens, count, kind, brief) for tokens, count in counts)
    return Plan(op.name, dims, arch, device, seeds[0], seeds[1], batches, graph=kind == "cuda")


def few_bins(bins: Iterable[int]) -> list[int]:
    """A narrow, a middle and a wide one of these token bins: where a brief plan runs, and mutants are built."""
    known = sorted(set(bins))
    return sorted({known[0], known[len(known) // 2], known[-1]})


def _padded(op: Op, known: list[int]) -> list[tuple[int, int]]:
    """(bin, true count) of the pack's padded counts; if none fits, three quarters of the widest bin."""
    found = [(op.bin_for(n), n) for n in op.pack.padded if op.bin_for(n) in known]
    widest = known[-1]
    return found or ([(widest, max(1, 3 * widest // 4))] if widest > 1 else [])


def _batch(op: Op, tokens: int, count: int, kind: str, brief: bool) -> Batch:
    steps = max(MIN_STEPS, -(-ROWS[kind] // count))
    if brief or count != tokens or tokens not in GENERATING:
        return Batch(tokens, count, steps)
    wider = [b for b in op.pack.bins if b > tokens]
    return Batch(tokens, count, steps, GENERATE[kind], wider[0] if wider else tokens // 2)


def token_ids(plan: Plan, batch: Batch, vocab: int, device: str) -> "torch.Tensor":
    """The given tokens, int64 [steps, count]: the same on every device."""
    import torch

    seed = (plan.token_seed + 100_003 * batch.tokens + batch.count) % (1 << 63)
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (batch.steps, batch.count), generator=gen).to(device)
