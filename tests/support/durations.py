"""How long each test file takes, in seconds of a quiet machine: the suite starts the longest first.

    pytest -n 2 --dist loadfile --durations 0 | python tests/support/durations.py        writes tests/durations.json

Files that take less than a few seconds are left out: when they run makes no difference.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

TABLE = Path(__file__).parents[1] / "durations.json"
LINE = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +([^:]+)::")
LEAST = 4.0


def known() -> dict[str, float]:
    """Seconds by the name of a file."""
    found: dict[str, float] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def summed(lines: Iterable[str]) -> dict[str, float]:
    """Of what pytest prints with --durations 0."""
    seconds: Counter[str] = Counter()
    for found in filter(None, map(LINE.match, lines)):
        seconds[Path(found[2]).name] += float(found[1])  # type: ignore[assignment]
    return {name: round(s) for name, s in seconds.most_common() if s >= LEAST}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(summed(sys.stdin), indent=1) + "\n", encoding="utf-8")
