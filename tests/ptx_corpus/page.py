"""docs/ptx-corpus.md: the kernels of the corpus, their findings, and under how many schedules each is found.

cd tests && python -m ptx_corpus.page > ../docs/ptx-corpus.md
"""

import sys
from collections.abc import Sequence

from ptx_corpus.build import Kept, load
from ptx_corpus.cases import CASES
from ptx_corpus.entries import KERNELS, SEEDS, Change
from ptx_corpus.faults import FAULTS
from ptx_corpus.judge import verdicts
from ptx_corpus.variants import VARIANTS

HEAD = """# Bug corpus of the PTX interpreter

Small CuTe DSL kernels, compiled for `sm_90a` by the real compiler and run by the interpreter (`gates/ptx`) under
{seeds} schedules each (seeds {first} to {last}). A broken kernel is a right one of `tests/ptx_corpus/kernels/` with
one place changed. It must give the finding named here under every schedule, but for those few in which all warps walk
in step past the fault, and no finding that leads elsewhere. A right one must give right numbers, bit for bit, and no
finding. *wrong-numbers*: nothing is wrong with memory or order, and the comparison with the reference fails. Written
by `python -m ptx_corpus.page`; a test compares it.

{broken} broken kernels of {bugs} kinds of mistakes, {right} right ones.
"""


def markdown(kept: dict[str, Kept]) -> str:
    right = len(CASES) + len(VARIANTS)
    bugs = sorted({c.bug for c in FAULTS})
    numbers = {"seeds": len(SEEDS), "first": SEEDS[0], "last": SEEDS[-1]}
    parts = [HEAD.format(broken=len(FAULTS), bugs=len(bugs), right=right, **numbers)]
    parts.append("## Findings\n\n| finding | broken kernels |\n|---|---|\n" + "".join(_counts()))
    parts.append(_broken(kept, bugs))
    parts.append(_right(kept))
    return "\n".join(parts)


def _counts() -> list[str]:
    kinds = sorted({str(c.finding) for c in FAULTS})
    return [f"| {kind} | {sum(c.finding == kind for c in FAULTS)} |\n" for kind in kinds]


def _broken(kept: dict[str, Kept], bugs: Sequence[str]) -> str:
    lines = [
        "## Broken kernels\n",
        "| mistake | kernel | in place of | stands | finding | on | schedules |",
        "|---|---|---|---|---|---|---|",
    ]
    for bug in bugs:
        for c in sorted((c for c in FAULTS if c.bug == bug), key=lambda c: c.key):
            hits = sum(v.meets(c) for v in verdicts(c, kept[c.key]))
            where = c.tensor and f"`{c.tensor}`"
            finding = f"{c.finding} or {c.otherwise}" if c.otherwise else c.finding
            change = f"{_code(c.line)} | {_code(c.instead)}"
            lines.append(f"| {bug} | {c.key} | {change} | {finding} | {where} | {hits} of {len(SEEDS)} |")
    return "\n".join(lines) + "\n"


def _right(kept: dict[str, Kept]) -> str:
    lines = ["## Right kernels\n", "| kernel | what it does, or does otherwise | findings |", "|---|---|---|"]
    for name in CASES:
        said = (KERNELS / f"{name}.py").read_text(encoding="utf-8").split('"""')[1]
        lines.append(f"| {name} | {' '.join(said.split())} | {_findings(Change(name, 'right', '', '', ''), kept)} |")
    lines += [f"| {c.key} | {c.bug}: {_code(c.instead)} | {_findings(c, kept)} |" for c in VARIANTS]
    return "\n".join(lines) + "\n"


def _findings(change: Change, kept: dict[str, Kept]) -> int:
    return sum(len(v.result.findings) for v in verdicts(change, kept[change.key]))


def _code(text: str) -> str:
    """A piece of source on one line of a table."""
    return f"`{' '.join(text.split())}`".replace("|", "\\|") if text else "nothing"


if __name__ == "__main__":
    sys.stdout.write(markdown(load()))
