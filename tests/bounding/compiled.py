"""What the table's variants came to when they were compiled last: a record that a quick test can hold them to.

noted(groups, path)      adds kernels and variants to the record
stale(record, rows)      what today's table has that the record does not say, or says otherwise, one line each
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bounding.build import AS_IT_IS, Made, wide_loads
from bounding.table import Row, source
from bounding.variants import BASE, SAME, left_out

from kgen.records import sha256_bytes

COMPILED = Path(__file__).with_name("compiled.json")
COMMAND = "PYTHONPATH=tests python benchmarks/bounds.py pack FILE"
Json = dict[str, Any]


def noted(groups: Iterable[Sequence[Made]], path: Path = COMPILED) -> None:
    """Hash of the source and of the object, wide loads and registers of each."""
    old = json.loads(path.read_text(encoding="utf-8"))["points"] if path.exists() else {}
    new = {_key(group[0].row, group[0].tokens): {m.variant.name: _facts(m) for m in group} for group in groups}
    body = ",\n".join(_text(key, found) for key, found in sorted({**old, **new}.items()))
    path.write_text(f'{{"command": {json.dumps(COMMAND)}, "points": {{\n{body}\n}}}}\n', encoding="utf-8")


def _key(row: Row, tokens: int) -> str:
    return f"{row.op} {row.candidate} t{tokens}"


def _facts(made: Made) -> Json:
    record = made.artefact.record
    text = left_out(source(made.row), made.variant)
    return {
        "source_sha256": sha256_bytes(text.encode()),
        "object_sha256": record.object_sha256,
        "registers": [k.registers for k in record.kernels],
        **{name: n for name, n in wide_loads(made).items() if n},
    }


def _text(key: str, found: Mapping[str, Json]) -> str:
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in found.items())
    return f" {json.dumps(key)}: {{\n  {lines}}}"


def stale(record: Mapping[str, Any], rows: Iterable[Row]) -> list[str]:
    found = []
    for row in rows:
        text = source(row)
        for tokens in row.tokens:
            key = _key(row, tokens)
            known = record["points"].get(key, {})
            loads = {name: _loads(facts) for name, facts in known.items()}
            for variant in (AS_IT_IS, *row.at(tokens)):
                facts = known.get(variant.name, {})
                if facts.get("source_sha256") != sha256_bytes(left_out(text, variant).encode()):
                    found.append(f"{key} {variant.name}: this source was not compiled; {COMMAND}")
                elif variant.loads == SAME and loads[variant.name] != loads[BASE]:
                    found.append(f"{key} {variant.name}: it loads otherwise than the kernel")
    return found


def _loads(facts: Json) -> Json:
    return {k: v for k, v in facts.items() if k not in ("source_sha256", "object_sha256", "registers")}
