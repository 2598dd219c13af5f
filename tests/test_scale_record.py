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
        *(f"{row[name]:.0f}" for name in ("own_ms", "gates_ms", "starting_ms", "sync_ms")),
    )
    assert f"| {' | '.join(cells)} |\n" in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def test_the_gain_of_a_second_worker_is_the_one_that_the_page_names() -> None:
    rates = {row["workers"]: row["per_minute"] for row in ROWS}
    page = " ".join((ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split())
    assert f"A second worker gives {rates[2] / rates[1]:.1f} times the candidates" in page


def test_the_page_says_how_much_of_the_own_time_is_not_the_gates_and_under_what_load_it_was_taken() -> None:
    one = next(row for row in ROWS if row["workers"] == 1)
    page = " ".join((ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split())
    rest = one["own_ms"] - one["gates_ms"]
    assert f"With one worker it is {one['own_ms']:.0f} ms" in page and f"the other {rest:.0f} ms" in page
    loads = [f"{row['load']:.1f}" for row in ROWS]
    assert f"load before the three runs was {loads[0]}, {loads[1]} and {loads[2]}" in page
