"""The comparison that a GPU run ends in: what it passes, and each thing that it must not pass."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support import vllm_proof
from support.checkout import ROOT
from support.vllm_proof import agreement, distribution, fallback, isolation, times, trigger

OP = "moe_shared"
HALVES = ("layer 0 attention (KDA)", "layer 1 MoE")
BUILDER = """
import argparse, json, os, pathlib
p = argparse.ArgumentParser()
for name in ("batches", "plugins", "additional", "engine", "out"): p.add_argument("--" + name, default="")
p.add_argument("--no-profile", action="store_true")
a = p.parse_args()
import importlib.metadata
found = [e.value for e in importlib.metadata.entry_points(group="vllm.general_plugins") if e.name == a.plugins]
given = json.loads(a.additional or "{}").get("kgen")
whole = given and (pathlib.Path(given["set"]) / "manifest.json").is_file() and given["set"].endswith("set")
if given and not whole: print("WARNING kgen: stock op for every op: damaged")
runs = []
for b in map(int, a.batches.split(",")):
    half = "layer 1 MoE"
    events = [dict(name="promoted_a" if whole else "stock", us=1.0, ts=0.0, half=half)]
    runs.append(dict(batch=b, tokens=[[1, 2]] * b, step_s=[1.0, 1.0, 2e-3], profile=dict(events=events)))
if given:
    seats = {"moe_shared": {"layers": [1], "launches": {"8": {"per_call": {"promoted_a": 1}}}}} if whole else {}
    captured = {str(r["batch"]): {"moe_shared": {"promoted": 1}} for r in runs}
    pathlib.Path(given["record"]).write_text(json.dumps(dict(seats=seats, captured=captured)))
assert not a.plugins or found, "the plugin is not found"
pathlib.Path(a.out).write_text(json.dumps(dict(gpu="H200", vllm="0.33.0", torch="2", runs=runs)))
"""


def run(batch: int, names: dict[str, list[str]], tokens: list[int] | None = None, scale: float = 1.0) -> dict[str, Any]:
    events = [
        {"name": n, "half": h, "ts": 100.0 * i + 10 * j * scale, "us": 10.0 * scale}
        for i, (h, all_of) in enumerate(names.items())
        for j, n in enumerate(all_of)
    ]
    return {
        "batch": batch,
        "tokens": [tokens or [1, 2, 3, 4]] * batch,
        "step_s": [9.0, 9.0, 0.002 * scale, 0.004 * scale],
        "profile": {"events": events},
    }


def report(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"runs": list(runs)}


STOCK = {HALVES[0]: ["gemm", "conv"], HALVES[1]: ["gemm", "situ", "gemm"]}
PROMOTED = {HALVES[0]: ["gemm", "conv"], HALVES[1]: ["kernel_up_0", "kernel_down_1"]}
RECORD: dict[str, Any] = {
    "captured": {"1": {OP: {"promoted": 1, "stock": {}}}, "2": {OP: {"promoted": 0, "stock": {"no kernel": 1}}}},
    "seats": {OP: {"layers": [1], "launches": {"1": {"per_call": {"kernel_up": 1, "kernel_down": 1}}}}},
}


def test_equal_runs_are_isolated() -> None:
    assert isolation(report(run(1, STOCK), run(2, STOCK)), report(run(1, STOCK), run(2, STOCK))) == []


@pytest.mark.parametrize(
    ("off", "told"),
    [
        (report(), "batch 1: not run with the plugin"),
        (report(run(1, STOCK, [1, 2, 3, 5])), "batch 1: other tokens"),
        (report(run(1, PROMOTED)), f"batch 1: {HALVES[1]}: other count of situ"),
        (report(run(1, {HALVES[0]: ["gemm", "conv", "gemm"], HALVES[1]: STOCK[HALVES[1]]})), "other count of gemm"),
        (report({**run(1, STOCK), "profile": None}), "batch 1: not profiled in both runs"),
    ],
)
def test_any_difference_breaks_isolation(off: dict[str, Any], told: str) -> None:
    assert any(told in line for line in isolation(report(run(1, STOCK)), off))


def test_promoted_kernels_are_counted_in_the_trace_where_the_record_says_so_and_nowhere_else() -> None:
    assert trigger(report(run(1, PROMOTED), run(2, STOCK)), RECORD) == []


@pytest.mark.parametrize(
    ("on", "told"),
    [
        (report(run(1, STOCK)), "kernel_up launched 0 times, expected 1 x 1"),
        (report(run(1, {HALVES[1]: ["kernel_up", "kernel_down", "kernel_down"]})), "kernel_down launched 2 times"),
        (report(run(4, PROMOTED)), "batch 4: no captured graph in the record"),
    ],
)
def test_a_trace_that_the_record_does_not_promise_is_told(on: dict[str, Any], told: str) -> None:
    assert any(told in line for line in trigger(on, RECORD))


def test_a_record_of_half_of_the_layers_is_told() -> None:
    seats = {OP: {"layers": [1, 2], "launches": RECORD["seats"][OP]["launches"]}}
    assert any(
        "promoted in 1 of 2 layers" in line for line in trigger(report(run(1, PROMOTED)), {**RECORD, "seats": seats})
    )


def test_heads_and_times_are_those_of_the_runs() -> None:
    base = report(run(1, STOCK), run(2, STOCK, [1, 2, 3, 9]))
    on = report(run(1, STOCK, [1, 2, 7, 7], 0.5), run(2, STOCK, [1, 2, 3, 9], 0.5))
    assert agreement(base, on) == {
        "1": {"tokens": 4.0, "promoted_against_stock": 2, "stock_against_itself": 4.0},
        "2": {"tokens": 4.0, "promoted_against_stock": 4, "stock_against_itself": 3.0},
    }
    assert times(base, on)["1"] == pytest.approx(
        {  # halves of 2 and 3 kernels of 10 us, end to start
            "layers_before": 50.0,
            "layers_after": 25.0,
            "step_before": 3000.0,
            "step_after": 1500.0,
            "layers_ratio": 2.0,
        }
    )


def test_a_broken_set_gives_stock_tokens_and_one_line() -> None:
    base, line = report(run(1, STOCK)), "WARNING kgen: stock op for moe_shared: damaged\n"
    assert fallback(base, base, f"start\n{line}end\n") == []
    assert fallback(base, base, "") == ["0 lines say why"]
    assert fallback(base, base, line * 2) == ["2 lines say why"]
    assert fallback(base, report(run(1, STOCK, [1, 2, 3, 5])), line) == ["batch 1: other tokens"]


def test_a_whole_proof_runs_the_builder_with_and_without_the_plugin(tmp_path: Path) -> None:
    builder, kernels = tmp_path / "builder.py", tmp_path / "set"
    builder.write_text(BUILDER)
    (kernels / "objects").mkdir(parents=True)
    (kernels / "objects" / "a.o.xz").write_bytes(b"0123456789")
    (kernels / "manifest.json").write_text("{}")
    script = [sys.executable, vllm_proof.__file__, "--builder", str(builder), "--set", str(kernels)]
    done = subprocess.run(
        [*script, "--out", str(tmp_path / "out"), "--batches", "1,8"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    proof = json.loads((tmp_path / "out" / "proof.json").read_text())
    assert proof["isolation"] == proof["trigger"] == [] and proof["fallback"] == {b: [] for b in vllm_proof.BREAKS}
    assert (kernels / "objects" / "a.o.xz").read_bytes() == b"0123456789"


def test_the_entry_point_is_written_where_no_distribution_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [])
    folder = distribution(tmp_path)
    monkeypatch.setattr(sys, "path", [folder])
    (found,) = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert (found.name, found.value) == ("kgen", "kgen.serve.vllm:register")
    assert distribution(tmp_path / "other") == "" and not (tmp_path / "other").exists()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["vllm.general_plugins"] == {found.name: found.value}
