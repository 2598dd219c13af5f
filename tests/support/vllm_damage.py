"""(e) of support/vllm_one.py: sets and layers that the plugin must refuse, each with stock's tokens and one line.

Covered: objects that are cut or gone, a set without its manifest, a GPU of another architecture, and a guard that fails
in one layer. The last two are brought about from within: another capability is reported, and a flag is set that vLLM
does not act upon with one rank. Not covered: refusals of a configuration.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.vllm_proof import BREAKS, SAID


class Said(logging.Handler):
    """The plugin's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def one_layer_off(model: Any) -> None:
    """A flag that vLLM does not act upon with one rank, in one layer, and that the guard refuses."""
    layers = [layer for layer in model.model.layers if layer.is_moe_layer]
    layers[1].block_sparse_moe.shared_experts.down_proj.reduce_results = True


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def damage(kernels_of: Path, out: Path, engines: Any, results: Any, batch: int) -> None:
    """Every case into `results`: tokens of the stock model, and one line that says why."""
    said = Said()
    stock = engines.build()
    want, _ = engines.tokens(stock, batch, 24, "stock")
    results.put("plugin", engines.plugin())
    logging.getLogger("vllm.kgen").addHandler(said)  # vLLM sets up logging as it is imported, and takes handlers away
    from kgen.serve.vllm import host
    from kgen.serve.vllm.plan import Plan

    seat = Plan.seat

    def seat_but_one(plan: Any, model: Any) -> None:
        one_layer_off(model)
        seat(plan, model)

    def case(name: str, kernels: Path, ops: list[str] | None = None) -> dict[str, Any]:
        said.lines.clear()
        record = out / f"damage-{name.replace(' ', '-')}.record.json"
        key = {"set": str(kernels.resolve()), "record": str(record.resolve()), **({"ops": ops} if ops else {})}
        got, _ = engines.tokens(engines.build({"kgen": key}), batch, 24, name.replace(" ", "-"))
        lines = [line for line in said.lines if line.startswith(SAID)]
        return {
            "equal_tokens": got == want,
            "lines": len(lines),
            "line": lines[0][:600] if lines else "",
            "ok": got == want and len(lines) == 1,
        }

    for what, break_it in BREAKS.items():
        copy = Path(shutil.copytree(kernels_of, out / f"set-{what.replace(' ', '-')}", dirs_exist_ok=True))
        break_it(copy)
        results.attempt(what, lambda what=what, copy=copy: case(what, copy))
    with replaced(host, "device_capability", lambda: "sm_100"):
        results.attempt("kernels of another arch", lambda: case("arch", kernels_of))
    with replaced(Plan, "seat", seat_but_one):
        results.attempt("a guard that fails on one layer", lambda: case("guard", kernels_of, ["moe_shared"]))
    results.put("done", True)
