"""docs/layers.md, from the committed record of decode layers."""

from support.checkout import ROOT

from kgen.gates.layer.markdown import markdown, read_stock
from kgen.gates.layer.record import read

RECORD, STOCK = ROOT / "benchmarks" / "layers_h200.json", ROOT / "benchmarks" / "stock_vllm_h200.json"
PICTURES = {"vllm-tp1/kda/t1/c0": "pictures/layer-kda-t1.svg"}


def page() -> str:
    return markdown(read(RECORD), read_stock(STOCK), PICTURES)
