"""Writes messages.json: what the compile gate says of each bad candidate. Run it after a change of the compiler:

PYTHONPATH=tests python -m diagnosis.record
"""

import json
import tempfile
from pathlib import Path

from diagnosis.cases import CASES, source

from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate
from kgen.gates.sandbox import Limits
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin

MESSAGES = Path(__file__).with_name("messages.json")


def said(names: list[str]) -> dict[str, dict[str, str]]:
    """Name -> code and message, compiled now."""
    op = REGISTRY.get("moe_shared")
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Builder(limits=Limits(cpu_seconds=8)) as builder,
        CompileGate(op, Path(folder), builder) as gate,
    ):
        for name in names:
            candidate = Candidate(op.name, source(name), Origin("test"))
            result = gate.run(candidate, [op.problem("nano", 1, "sm_90a")]).result
            found[name] = {"code": result.code, "message": result.message}
    return found


def main() -> None:
    MESSAGES.write_text(json.dumps(said(list(CASES)), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
