"""The committed record of promoted sources built for another architecture, and the page's table of it.

One row a source: how many points of each dims are built and audited there, and what the interpreter says of the small
ones. benchmarks/staged.py writes it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.checkout import ROOT

from kgen.ops import REGISTRY

RECORD = ROOT / "benchmarks" / "staged_sm_103a.json"
SMALL_BINS = (1, 4, 16)  # a narrow, a middle and a wide one, as a run without a GPU interprets
PASSED = {"compile.pass", "numeric.ptx_pass"}
SHOWN = {"k3-tp8": "TP8", "k3-tp16": "TP16", "vllm-tp1": "`vllm-tp1`", "nano": "`nano`"}


def read(path: Path, arch: str, by: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows by candidate; none where the record is of another architecture or compiler."""
    if not path.exists():
        return {}
    body = json.loads(path.read_text(encoding="utf-8"))
    return {row["candidate"]: row for row in body["rows"]} if (body["arch"], body["compiler"]) == (arch, by) else {}


def write(path: Path, arch: str, by: Mapping[str, Any], rows: Mapping[str, dict[str, Any]]) -> None:
    """Whole or not at all."""
    ordered = sorted(rows.values(), key=lambda row: (row["op"], row["candidate"]))
    command = f"PYTHONPATH=tests python benchmarks/staged.py --arch {arch}"
    body = {"command": command, "arch": arch, "compiler": by, "rows": ordered}
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def rows() -> list[dict[str, Any]]:
    return list(json.loads(RECORD.read_text(encoding="utf-8"))["rows"])


def staged(row: Mapping[str, Any]) -> bool:
    """Built and audited at every point that it can be built for, and right in the interpreter."""
    said = [*(each["code"] for each in row["dims"].values()), row.get("interpreter", {}).get("code", "")]
    return set(said) <= PASSED


def region(*_: object) -> str:
    """The table, and why what is not staged is not."""
    lines = ["", f"| source | {' | '.join(SHOWN.values())} | interpreter | registers | spills, B | staged |"]
    lines.append(f"| --- | {' | '.join('---:' for _ in SHOWN)} | --- | ---: | ---: | --- |")
    notes = []
    for row in rows():
        name = f"{row['op']} `{row['candidate'][:12]}`"
        cells = [_built(row["dims"].get(dims)) for dims in SHOWN]
        most = [max((d.get(k, 0) for d in row["dims"].values()), default=0) for k in ("registers", "stack_bytes")]
        said = row.get("interpreter", {}).get("code", "–").removeprefix("numeric.ptx_")
        lines.append(f"| {name} | {' | '.join(cells)} | {said} | {most[0]} | {most[1]} | {_yes(staged(row))} |")
        notes += [f"* {name}: {text}" for text in dict.fromkeys(_reasons(row))]
    return "\n".join([*lines, *([""] if notes else []), *notes, "", ""])


def _built(said: Mapping[str, Any] | None) -> str:
    if said is None:
        return "–"
    return str(said["points"]) if said["code"] in PASSED else f"0 of {said['asked']}"


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _reasons(row: Mapping[str, Any]) -> list[str]:
    found = [each["message"] for each in row["dims"].values() if each["code"] not in PASSED]
    interpreter = row.get("interpreter")
    if interpreter and interpreter["code"] not in PASSED:
        found.append(interpreter["message"])
    return [text.replace("|", "/") for text in found]


def stale(row: Mapping[str, Any]) -> bool:
    """Of an op contract that is no longer this one."""
    return bool(REGISTRY.get(row["op"]).contract_sha256() != row["op_contract"])
