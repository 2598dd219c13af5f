"""The page on many machines shows the committed measurement, row by row."""

import json

import pytest
from support.checkout import ROOT

ROWS = json.loads((ROOT / "benchmarks" / "scale.json").read_text(encoding="utf-8"))["runs"]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['workers']} workers")
def test_each_measured_row_stands_on_the_page(row: dict[str, float]) -> None:
    cells = (
        f"{row['workers']}",
        f"{row['per_minute']:.1f}",
        f"{row['seconds']:.1f}",
        *(f"{row[name]:.0f}" for name in ("own_ms", "starting_ms", "sync_ms")),
    )
    assert f"| {' | '.join(cells)} |\n" in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def test_the_gain_of_a_second_worker_is_the_one_that_the_page_names() -> None:
    rates = {row["workers"]: row["per_minute"] for row in ROWS}
    page = " ".join((ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split())
    assert f"A second worker gives {rates[2] / rates[1]:.1f} times the candidates" in page
