"""docs/layers.md from the committed record of decode layers: `PYTHONPATH=tests python -m layers_page`."""

from pathlib import Path

from kgen.gates.layer.markdown import markdown, read_stock
from kgen.gates.layer.record import read

ROOT = Path(__file__).parents[1]
RECORD, STOCK, PAGE = "benchmarks/layers_h200.json", "benchmarks/stock_vllm_h200.json", "docs/layers.md"
PICTURES = {"vllm-tp1/kda/t1/c0": "pictures/layer-kda-t1.svg"}


def page() -> str:
    return markdown(read(ROOT / RECORD), read_stock(ROOT / STOCK), PICTURES)


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
