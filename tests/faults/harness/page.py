"""The tables of faults in docs/threat-model.md, between their two marks. To write them anew:

PYTHONPATH=tests python -m faults.harness.page
"""

from exploits.harness.page import PAGE
from faults.durability.harness.case import cases as stored
from faults.harness.case import ROWS, Shown, cases, references

BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"


def faults() -> str:
    """What must be covered and by which cases; then the cases of the world, and those of stored files."""
    world = cases()
    by_row: dict[int, list[str]] = {row: [] for row in ROWS}
    for name, case in world.items():
        by_row[case.row].append(f"`{name}`")
    for one in references():
        by_row[one.row].append(f"`{one.exploit if isinstance(one, Shown) else f'durability/{one.durability}'}`")
    kept = stored()
    deep = sum(c.deep for c in world.values()) + sum(c.deep for c in kept.values())
    parts = [
        f"{len(world)} cases of the world and {len(kept)} of stored files; {deep} (deep) run under `make deep`.\n",
        "| what happens | shown by |\n|---|---|\n"
        + "".join(f"| {ROWS[row]} | {', '.join(names)} |\n" for row, names in by_row.items()),
        "### The world\n\n| case | what happens | must be noticed by | must end as | defence | without it |\n"
        "|---|---|---|---|---|---|\n"
        + "".join(
            _line(
                name,
                c.what + _deep(c.deep),
                c.who,
                f"`{c.code}`",
                c.off.words,
                f"`{c.then}`" if c.then else "unnoticed",
            )
            for name, c in world.items()
        ),
        "### Stored files\n\n| case | what happens | of | must end as | defence | without it |\n"
        "|---|---|---|---|---|---|\n"
        + "".join(
            _line(name, k.what + _deep(k.deep), k.of, k.must, k.off.words, f"`{k.then}`") for name, k in kept.items()
        ),
    ]
    return "\n".join(parts)


def _deep(deep: bool) -> str:
    return " (deep)" if deep else ""


def _line(name: str, *cells: str) -> str:
    return f"| `{name}` | {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |\n"


def page(text: str) -> str:
    """The page with these tables made anew."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + faults() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
