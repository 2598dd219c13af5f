"""Compares the interpreter with what a GPU wrote, output by output.

    cd tests && python -m ptx_truth.compare RESULT.json.xz            # writes what is committed: h200.json and the rest
    cd tests && python -m ptx_truth.compare RESULT.json.xz FOLDER     # writes into a folder instead

Builds the kernels again: what the GPU ran must be what the sources give now. Every repetition is compared with every
schedule. An output must have the same bits, or lie within the interval that its case states; all else is red.
"""

import base64
import json
import lzma
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ptx_corpus.build import installed
from ptx_truth import page
from ptx_truth.build import Made, build
from ptx_truth.cases import MAKERS, make
from ptx_truth.entries import Array, Bound, Case, Tensor, numbers
from ptx_truth.interpret import bits, interpret

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
EQUAL, BOUNDED, RED = "equal", "within its bound", "red"
SAME = ("source_sha256", "inputs_sha256", "ptx_sha256", "code")


@dataclass(frozen=True)
class Row:
    """The worst of all pairs. `worst`: largest difference in units of the interval's length. `why`: of a red one."""

    elements: int
    differing: int
    differing_bits: int
    worst: float
    verdict: str
    why: str = ""


def judge(tensor: Tensor, bound: Bound | None, values: Mapping[str, Array], ours: Array, theirs: Array) -> Row:
    """One output of one schedule against one repetition. `values`: the case's inputs as numbers."""
    differ = (ours != theirs) if ours.dtype.kind != "f" else ours.view(np.uint32) != theirs.view(np.uint32)
    count = int(differ.sum())
    flipped = np.ascontiguousarray(ours).view(np.uint8) ^ np.ascontiguousarray(theirs).view(np.uint8)
    facts = ours.size, count, int(np.unpackbits(flipped).sum())
    if not count:
        return Row(*facts, 0.0, EQUAL)
    at = tuple(int(i) for i in np.argwhere(differ)[0])
    a, b = numbers(tensor.dtype, ours), numbers(tensor.dtype, theirs)
    if bound is None:
        return Row(*facts, 0.0, RED, f"at {at} it is {a[at]!r}, the GPU has {b[at]!r}: must be the same to the bit")
    low, high = bound.interval(values)
    inside = (high > low) & (a >= low) & (a <= high) & (b >= low) & (b <= high)
    if not inside[differ].all():
        at = tuple(int(i) for i in np.argwhere(differ & ~inside)[0])
        said = f"at {at} it is {a[at]!r}, the GPU has {b[at]!r}, right is {low[at]!r} to {high[at]!r}"
        return Row(*facts, 0.0, RED, said)
    return Row(*facts, float((np.abs(a - b)[differ] / (high - low)[differ]).max()), BOUNDED)


def worse(rows: Sequence[Row]) -> Row:
    """One row for all pairs: the worst verdict, the largest numbers."""
    worst = max(rows, key=lambda r: ((EQUAL, BOUNDED, RED).index(r.verdict), r.worst))
    counts = max(r.differing for r in rows), max(r.differing_bits for r in rows)
    return Row(worst.elements, *counts, max(r.worst for r in rows), worst.verdict, worst.why)


def stale(case: Case, made: Made, record: Mapping[str, Any]) -> str:
    """What the GPU ran that is not what the sources give now; "" for nothing."""
    now = (case.source_sha256, case.inputs_sha256, made.ptx_sha256, made.code)
    other = [name for name, value in zip(SAME, now, strict=True) if record[name] != value]
    return f"its {other[0]} is not that of the sources as they are" if other else ""


def compare(case: Case, made: Made, record: Mapping[str, Any]) -> dict[str, Row]:
    """Rows by output; under the name "" what is wrong with the case as a whole."""
    if record["error"]:
        return {"": Row(0, 0, 0, 0.0, RED, f"on the GPU: {record['error']}")}
    launched = Counter(launch.kernel for launch in made.launches)
    if record["counts"] != launched:
        return {"": Row(0, 0, 0, 0.0, RED, f"launched on the GPU: {record['counts']}, recorded: {dict(launched)}")}
    ours = [interpret(case, made, seed) for seed in SEEDS]
    if said := next((one.complaint for one in ours if one.complaint), ""):
        return {"": Row(0, 0, 0, 0.0, RED, f"the interpreter says: {said}")}
    values, rows = case.numbers(), {}
    for name in case.outputs:
        tensor, hashes = case.tensors[name], {r[name] for r in record["repetitions"]}
        theirs = [bits(tensor, base64.b64decode(record["outputs"][h])) for h in sorted(hashes)]
        pairs = [(a.outputs[name], b) for a in ours for b in theirs]
        rows[name] = worse([judge(tensor, case.bounds.get(name), values, a, b) for a, b in pairs])
    return rows


def summary(case: Case, record: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
    """What is committed of a case."""
    kept = {name: record[name] for name in (*SAME, "object_sha256")}
    distinct = len({json.dumps(r, sort_keys=True) for r in record["repetitions"]})
    outputs = {name: asdict(row) for name, row in rows.items()}
    return {**kept, "kind": case.kind, "distinct": distinct, "outputs": outputs}


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return found


def main(arguments: Sequence[str]) -> str:
    if not 1 <= len(arguments) <= 2:
        return "usage: python -m ptx_truth.compare RESULT.json.xz [FOLDER]"
    result, folder = load(Path(arguments[0])), Path(arguments[1]) if arguments[1:] else HERE
    if absent := [key for key in MAKERS if key not in result["cases"]]:
        return f"{arguments[0]} has no {absent[0]}: pack, run and compare again"
    cases = {key: make(key) for key in MAKERS}
    made = build(cases.values())
    for key, case in cases.items():
        if said := stale(case, made[key], result["cases"][key]):
            return f"{key}: {said}: {page.AGAIN}"
    found = {}
    for key, case in cases.items():
        record = result["cases"][key]
        found[key] = summary(case, record, compare(case, made[key], record))
        for name, row in found[key]["outputs"].items():
            sys.stdout.write(f"{key} {name}: {row['verdict']} {row['why']}\n")
    measured = {"environment": result["environment"], "compiler": installed(), "cases": found}
    (folder / page.MEASURED.name).write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (folder / page.SILICON.name).write_bytes(Path(arguments[0]).read_bytes())
    target = page.PAGE if folder == HERE else folder / page.PAGE.name
    target.write_text(page.markdown(cases.values(), measured), encoding="utf-8")
    red = [key for key, one in found.items() if any(r["verdict"] == RED for r in one["outputs"].values())]
    return f"red: {', '.join(red)}" if red else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
