"""The table in docs/fuzzing.md, between its two marks. To write it anew: PYTHONPATH=tests python -m fuzz.page"""

import json
from collections.abc import Mapping
from typing import Any

from support.checkout import ROOT

from fuzz.guard import MEGABYTES, SECONDS
from fuzz.run import RECORD
from fuzz.targets import TARGETS

PAGE = ROOT / "docs" / "fuzzing.md"
BEGIN, END = "<!-- targets: begin -->\n", "<!-- targets: end -->\n"


def table(record: Mapping[str, Any]) -> str:
    rows = record["targets"]
    tried, cases = sum(r["executions"] for r in rows.values()), sum(r["cases"] for r in rows.values())
    engines = " and ".join(sorted({r["engine"] for r in rows.values()}))
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    seconds = sum(r["seconds"] for r in rows.values())
    head = (
        f"{len(TARGETS)} targets, each promise within {SECONDS:g} s of CPU time, {MEGABYTES} MiB and without a file"
        f" written, a process or a connection. Last run: {record['date']}, `{record['command']}`, {tried} inputs in"
        f" {seconds:.0f} s of CPU time ({engines}; {versions}), {sum(r['crashes'] for r in rows.values())} broken"
        f" promises; {cases} cases are kept from earlier ones.\n\n"
        "| target | parser | seeds | changed as | promise | inputs | cases |\n|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| `{t.name}` | {t.parser} | {t.seeded} | {t.shape} | {t.promise} | {rows[t.name]['executions']} |"
        f" {rows[t.name]['cases']} |\n"
        for t in TARGETS.values()
    )


def page(text: str) -> str:
    """The page with its table made anew."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + table(json.loads(RECORD.read_text())) + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
