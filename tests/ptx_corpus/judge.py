"""Runs a kernel of the corpus in the interpreter, and says what was found."""

from dataclasses import dataclass

from ptx_corpus.build import Kept
from ptx_corpus.cases import CASES
from ptx_corpus.entries import FOLLOWS, NUMBERS, SEEDS, Change

from kgen.gates.ptx import Buffer, Limits, Result, run

_KNOWN: "dict[tuple[str, str], tuple[Verdict, ...]]" = {}
LIMITS = Limits(instructions=500_000, seconds=60)


@dataclass(frozen=True)
class Verdict:
    """`found`: (kind, tensor) of all findings; wrong numbers count only where there are none, as in the gate."""

    found: frozenset[tuple[str, str]]
    right: bool
    result: Result

    def meets(self, change: Change) -> bool:
        """Whether the finding that a broken kernel must have is there, and none that leads astray."""
        kinds = {kind for kind, _ in self.found}
        allowed = {change.finding, *FOLLOWS.get(change.finding, ()), change.otherwise, *change.also}
        at = {tensor for kind, tensor in self.found if kind == change.finding}
        named = (change.tensor in at if change.tensor else bool(at)) or change.otherwise in kinds
        return named and kinds <= allowed

    def words(self) -> str:
        lines = [str(f) for f in self.result.findings]
        return "\n".join([*lines, self.result.skipped, self.result.stopped, f"numbers right: {self.right}"])


def judge(change: Change, kept: Kept, seed: int) -> Verdict:
    case = CASES[change.kernel]
    buffers = {n: Buffer.of(array, case.dtype(n), role) for n, (role, array) in case.tensors.items()}
    result = run(kept.ptx, kept.launches * case.calls, buffers, seed, limits=LIMITS)
    wrong = case.wrong(result.outputs) if result.whole else tuple(case.want)
    found = {(f.kind.value, f.tensor) for f in result.findings}
    if result.whole and not found:
        found = {(NUMBERS, name) for name in wrong}
    return Verdict(frozenset(found), not wrong, result)


def verdicts(change: Change, kept: Kept) -> tuple[Verdict, ...]:
    """Of all seeds. Remembered: the tests and the page ask for the same ones."""
    key = (change.key, kept.ptx)
    if key not in _KNOWN:
        _KNOWN[key] = tuple(judge(change, kept, seed) for seed in SEEDS)
    return _KNOWN[key]
