"""In a checkout: which exploit cases a GPU has to run again, from the record that is committed beside them.

    silicon(Path.cwd(), current) -> Silicon | None      None outside a checkout, or in one without such cases

A case is stale when a file that its kernel's text comes from, the contract of its op, or the gate contract is another
one than the record says, and so is a case that waits for its first measurement. That what the GPU found is what the
cases name, and that the machine code is that of the texts, is what the checkout's own tests show. Not covered: the
compiler's release.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgen.promotion.freshness import Current, staleness
from kgen.records import sha256_bytes
from kgen.store.paths import checkout

CASES = Path("tests/exploits/gpu")
RECORD = CASES / "h200.json"
AGAIN = "make exploits-gpu, on a machine with a GPU (docs/threat-model.md tells how without a checkout there)"
WAITS = "not measured yet"


@dataclass(frozen=True)
class Silicon:
    """`gpu` is empty before one was asked. `cases`: on record, and waiting. `stale`: why, by case."""

    gpu: str
    cases: int
    stale: Mapping[str, str]

    def __str__(self) -> str:
        if not self.gpu:
            return f"exploit cases: not measured on a GPU yet; next: {AGAIN}"
        if not self.stale:
            return f"exploit cases: {self.cases} measured on {self.gpu}, all of the sources as they are"
        first, why = next(iter(self.stale.items()))
        others = f" ({', '.join(list(self.stale)[1:])} as well)" if len(self.stale) > 1 else ""
        head = f"exploit cases: {len(self.stale)} of {self.cases}, measured on {self.gpu}, are to be run again"
        return f"{head}: {first}, {why}{others}; next: {AGAIN}"


def silicon(start: Path, current: Current) -> Silicon | None:
    """Raises ValueError for a record that cannot be read."""
    root = checkout(start)
    if root is None or not (root / CASES).is_dir():
        return None
    if not (root / RECORD).is_file():
        return Silicon("", 0, {})
    try:
        found = json.loads((root / RECORD).read_text(encoding="utf-8"))
        why = {key: _stale(one, root, current) for key, one in found["cases"].items()}
        why |= {str(key): WAITS for key in found["waiting"]}
        return Silicon(str(found["environment"]["gpu"]), len(why), {key: said for key, said in why.items() if said})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{root / RECORD} is no record of exploit cases ({error}); next: {AGAIN}") from None


def _stale(one: Mapping[str, Any], root: Path, current: Current) -> str:
    for name, sha256 in one["files"].items():
        path = root / name
        if not path.is_file() or sha256_bytes(path.read_bytes()) != sha256:
            return f"{name} has changed since"
    built = one["built"]
    return staleness(built["op"], built["op_contract"], int(built["gate_contract"]), current)
