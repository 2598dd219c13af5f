"""Points of the search families, ranked on a GPU by `python3 kit.pyz --rank`: many such answers as one record.

    python benchmarks/ranked.py take FILE... --runs FOLDER [--record benchmarks/ranked.json]
    python benchmarks/ranked.py check [--record benchmarks/ranked.json]

`take` reads what the kit wrote with --out, and from the folders of the runs that the kit was made of which template and
values each candidate has. Runs that the record already holds are replaced, others stay. `check` says what is wrong with
a record and ends with 1 then.

A ranking is a search aid and never evidence: seeds are known, the stock op is not compiled, outputs are not judged by
the gates' rules, and nothing is promoted by it. `rel_l2` is the distance to the stock op, the largest over the outputs;
where an op has a state, that of the second and later kernels of a point is left out: in these rankings their state
was the one that the kernel timed before had left, and the stock op's was not, so the distance says nothing.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgen.contract import Role
from kgen.ops import REGISTRY
from kgen.records import Problem, from_json
from kgen.store.kernelset import parse_problem

RECORD = Path(__file__).with_suffix(".json")
MACHINE = ("gpu", "driver", "cuda", "torch", "python")
OK = "ok"
Json = dict[str, Any]


def has_state(op: str) -> bool:
    return any(t.role is Role.STATE for t in REGISTRY.get(op).tensors)


def taken(answer: Mapping[str, Any], folder: Path) -> Json:
    """One run of the record. `answer`: what --rank wrote. `folder`: the run's, for the origins of its candidates."""
    numbers = {made.name.partition("-")[2]: made for made in sorted(folder.glob("[0-9]*-*"))}
    order, seen = list(numbers), dict[str, str]()
    candidates: Json = {}
    rows: list[Json] = []
    for row in sorted(answer["rows"], key=lambda r: order.index(r["candidate"][:12])):  # as the kit had them
        problem, name = from_json(Problem, row["spec"]["problem"]), row["candidate"][:12]
        first = seen.setdefault(problem.key, name)
        if name not in candidates:
            origin = json.loads((numbers[name] / "origin.json").read_text(encoding="utf-8"))["detail"]
            candidates[name] = {"template": origin["template"], "values": origin["values"]}
        found: Json = {
            "point": problem.key,
            "candidate": name,
            "design": row["spec"]["design"],
            "status": row["status"],
        }
        if row["status"] == OK:
            found |= {k: round(float(row[k]), 3) for k in ("us", "us_best", "stock_us")}
            if name == first or not has_state(problem.op):
                found["rel_l2"] = float(f"{float(row['rel_l2']):.3g}")
        else:
            found["message"] = row["message"]
        rows.append(found)
    op = parse_problem(rows[0]["point"]).op
    rows.sort(key=lambda r: (parse_problem(r["point"]).tokens, order.index(r["candidate"])))
    machine = {name: answer["environment"][name] for name in MACHINE}
    return {"run": answer["run"], "op": op, "machine": machine, "candidates": candidates, "rows": rows}


def text(runs: Sequence[Json]) -> str:
    """The record's file: a line a candidate and a row."""
    parts = []
    for run in sorted(runs, key=lambda r: (r["op"], r["run"])):
        head = ", ".join(f'"{k}": {json.dumps(run[k])}' for k in ("run", "op", "machine"))
        known = ",\n".join(f'  "{name}": {json.dumps(made)}' for name, made in run["candidates"].items())
        rows = ",\n".join(f"  {json.dumps(row)}" for row in run["rows"])
        parts.append(f'{{{head},\n "candidates": {{\n{known}}},\n "rows": [\n{rows}]}}')
    said = json.dumps("python3 kit.pyz --rank --out FILE; python benchmarks/ranked.py take FILE... --runs FOLDER")
    return f'{{"command": {said},\n"runs": [\n' + ",\n".join(parts) + "\n]}\n"


def complaints(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with a record, one line each: points that an op does not have, figures that mean nothing."""
    found: list[str] = []
    for run in record["runs"]:
        first: dict[str, str] = {}
        for row in run["rows"]:
            where, name = f"{run['run']} {row['point']} {row['candidate']}", row["candidate"]
            problem = parse_problem(row["point"])
            if problem.op != run["op"] or problem not in REGISTRY.get(run["op"]).points(*_place(problem)):
                found.append(f"{where}: {run['op']} has no such point")
            if name not in run["candidates"]:
                found.append(f"{where}: nothing says which values it has")
            leader = first.setdefault(row["point"], name)
            if "rel_l2" in row and name != leader and has_state(run["op"]):
                found.append(f"{where}: its rel_l2 compares different states; leave it out")
            if row["status"] == OK and not 0 < row["us_best"] <= row["us"]:
                found.append(f"{where}: {row['us']} µs cannot be the median where {row['us_best']} is the least")
            if row["status"] != OK and ({"us", "rel_l2"} & set(row) or not row.get("message")):
                found.append(f"{where}: {row['status']} has a message and no figures")
    return found


def _place(problem: Problem) -> tuple[str, int, str]:
    return problem.dims, problem.tokens, problem.arch


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("take", "check"))
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--runs", type=Path, help="the folder that holds the run folders")
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args(argv)
    if args.what == "take":
        if not args.files or args.runs is None:
            parser.error("take needs files of --rank and --runs")
        answers = [json.loads(path.read_text(encoding="utf-8")) for path in args.files]
        new = [taken(answer, args.runs / answer["run"]) for answer in answers]
        old = json.loads(args.record.read_text(encoding="utf-8"))["runs"] if args.record.exists() else []
        names = {run["run"] for run in new}
        args.record.write_text(text([*(run for run in old if run["run"] not in names), *new]), encoding="utf-8")
    said = complaints(json.loads(args.record.read_text(encoding="utf-8")))
    sys.stdout.write("".join(f"{line}\n" for line in said))
    return 1 if said else 0


if __name__ == "__main__":
    raise SystemExit(main())
