"""docs/ptx-truth.md from the cases and, once a GPU was asked, from h200.json.

cd tests && python -m ptx_truth.page
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ptx_truth.entries import Case

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "ptx-truth.md"
MEASURED, SILICON = HERE / "h200.json", HERE / "h200.silicon.json.xz"
AGAIN = "make ptx-truth-gpu, on a machine with a GPU"
HEAD = """# The PTX interpreter against a GPU

The same objects, as the compiler wrote them, on the same inputs: run on an H200, and as PTX by the interpreter
(`gates/ptx`) under three schedules. Compared is every element of every output. An output without a bound must have
the same bits. One with a bound may differ where a value is not settled by the program: in how mma and wgmma sum, in
the last bits of approximate functions, in the order of float atomics, in whether a `mul.f32` and an `add.f32` without
`.rn` are fused. Its bound is an interval for each element, around a float64 evaluation of the same formula, rounded to
the output's format; both sides must lie in it, and where it is a single number they must agree. Every other difference
is red. Written by `python -m ptx_truth.compare`; a test compares it with the sources, and the interpreter of today with
what the GPU wrote then, for cases drawn anew each time.

To measure again, on a machine with a GPU: `make ptx-truth-gpu`. For a GPU host without a checkout:
`make ptx-truth-gpu GPU_ARGS='pack cases.pyz'`, there `python3 cases.pyz result.json.xz`, and here
`make ptx-truth-gpu GPU_ARGS='take result.json.xz'`.
"""
MACHINE = """{gpu}, driver {driver}, CUDA {cuda}, torch {torch}; objects built by nvidia-cutlass-dsl {compiler}.
{cases} cases, {outputs} outputs: {equal} equal to the bit, {bounded} within their bounds, {red} red.

*Runs*: distinct results of three runs on the GPU. *Differ*: elements with other bits, in the worst pair of a schedule
and a run. *Worst*: their largest difference, in lengths of the element's interval.
"""


def measured() -> dict[str, Any] | None:
    """What is committed; None before a GPU was asked."""
    return dict(json.loads(MEASURED.read_text(encoding="utf-8"))) if MEASURED.exists() else None


def markdown(cases: Iterable[Case], found: Mapping[str, Any] | None) -> str:
    cases = list(cases)
    parts = [HEAD, _plan(cases) if found is None else _table(cases, found), _bounds(cases)]
    return "\n".join(parts)


def _plan(cases: list[Case]) -> str:
    lines = [
        "## Kernels\n",
        f"**Not measured yet**: no GPU has been asked. Prepared are {len(cases)} cases:\n",
        "| case | what it does | calls | outputs |",
        "|---|---|---|---|",
    ]
    lines += [f"| {c.key} | {c.kind} | {len(c.calls)} | {', '.join(c.outputs)} |" for c in cases]
    return "\n".join(lines) + "\n"


def _table(cases: list[Case], found: Mapping[str, Any]) -> str:
    outputs = [o for one in found["cases"].values() for o in one["outputs"].values()]
    equal, bounded, red = (sum(o["verdict"] == v for o in outputs) for v in ("equal", "within its bound", "red"))
    facts = {name: found["environment"][name] for name in ("gpu", "driver", "cuda", "torch")}
    facts |= {"compiler": found["compiler"], "cases": len(found["cases"]), "outputs": len(outputs)}
    lines = [
        "## Kernels\n",
        MACHINE.format(**facts, equal=equal, bounded=bounded, red=red),
        "| case | what it does | output | elements | differ | worst | verdict | runs | PTX | object |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        one = found["cases"][case.key]
        for name in (n for n in ("", *case.outputs) if n in one["outputs"]):
            o = one["outputs"][name]
            worst = f"{o['worst']:.2g}" if o["differing"] else ""
            lines.append(
                f"| {case.key} | {case.kind} | {name} | {o['elements']} | {o['differing']} | {worst} | {o['verdict']} "
                f"{o['why']}| {one['distinct']} | {one['ptx_sha256'][:12]} | {one['object_sha256'][:12]} |"
            )
    return "\n".join(lines) + "\n"


def _bounds(cases: list[Case]) -> str:
    lines = ["## Bounds\n", "| case | output | what is open |", "|---|---|---|"]
    lines += [f"| {c.key} | {name} | {bound.why} |".replace("|a b| + |c|", "\\|a b\\| + \\|c\\|")
              for c in cases for name, bound in c.bounds.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    from ptx_truth.cases import MAKERS, make

    PAGE.write_text(markdown([make(key) for key in MAKERS], measured()), encoding="utf-8")


if __name__ == "__main__":
    main()
