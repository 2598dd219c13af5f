"""Figures in docs/model.md and in the notes for kernel writers are what the code gives; its commands are understood.

Not covered: prose, and figures that were measured on a GPU.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kgen.contract.op import Op
from kgen.model.bind import OpCall
from kgen.model.decoder.config import CONFIGS, Config
from kgen.model.decoder.step import DecodeStep
from kgen.model.decoder.weights import Weights, expected
from kgen.model.nano import train
from kgen.ops import REGISTRY
from kgen.records import Problem
from kgen.report.op_facts import GPUS, CostRow, costs

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "model.md").read_text()
NOTED = sorted(set(REGISTRY.ops) - {"moe_shared", "attn_res"})  # those two pages are older than the line of figures
SHARE, EXPERTS = 0.006, 0.25  # a router's near ties may fall otherwise on another machine: 5 of 1024 choices


class Nobody:
    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        return lambda values: {}


def tensors(config: Config) -> dict[str, torch.Tensor]:
    table = expected(config, REGISTRY).items()
    return {name: torch.empty(shape, dtype=dtype, device="meta") for name, (dtype, shape) in table}


def cells(section: str) -> list[list[str]]:
    """Rows of the last table in a section, without its head."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    last = max(i for i, line in enumerate(rows) if re.match(r"\|-+", line))
    return [[c.strip(" `") for c in line.strip("|").split("|")] for line in rows[last + 1 :]]


def letters(config: Config) -> str:
    return " ".join(f"{layer.attention[0].upper()}{layer.ffn[0]}" for layer in config.layers)


def test_the_table_of_configurations_is_the_code_s() -> None:
    found = cells("Configurations")
    assert [row[0] for row in found] == list(CONFIGS)
    for name, dims, layers, block, calls, size in found:
        config = CONFIGS[name]
        own = tensors(config)
        step = DecodeStep(config, Weights(own), 8, 1, "", Nobody(), REGISTRY)
        nbytes = sum(t.numel() * t.element_size() for t in own.values())
        amount, unit = size.split(" ")
        assert (dims, layers, int(block)) == (config.dims, letters(config), config.block)
        assert int(calls) == sum(step.calls().values())
        assert float(amount) == pytest.approx(nbytes / {"GB": 1e9, "MB": 1e6}[unit], rel=5e-3)


def test_the_ops_of_a_step_are_all_named_and_no_others() -> None:
    named = {word for row in cells("A step") for word in re.findall(r"`?([a-z]+_[a-z_]+)`?", row[1])}
    assert named - {"fused_oproj"} == set(REGISTRY.ops)


def blocks(language: str) -> Iterator[str]:
    yield from re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_routing_table_is_what_its_program_prints() -> None:
    program = next(block for block in blocks("python") if "measure(" in block)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(program, "docs/model.md", "exec"), {})
    got = {
        int(layer): (float(a), float(b)) for layer, a, b in re.findall(r"layers\.(\d+)\S+ (\S+) (\S+)", out.getvalue())
    }
    said = {int(layer): (float(share), float(experts)) for layer, share, experts in cells("Weights")}
    assert said.keys() == got.keys() and len(said) == 7
    for layer, (share, experts) in said.items():
        assert got[layer][0] == pytest.approx(share, abs=SHARE)
        assert got[layer][1] == pytest.approx(experts, abs=EXPERTS)


def test_the_training_command_is_understood() -> None:
    line = next(line for block in blocks("sh") for line in block.splitlines() if "nano.train" in line)
    words = shlex.split(line.replace("cuda", "cpu"))
    assert words[:3] == ["python", "-m", "kgen.model.nano.train"]
    assert train.parse(words[3:]).graphs


def number(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2g}"


@pytest.mark.parametrize("name", NOTED)
def test_the_notes_give_the_contract_s_floor(name: str) -> None:
    op = REGISTRY.ops[name]

    def row(gpu: str) -> tuple[CostRow, ...]:
        return costs(op, GPUS[gpu], ("k3-tp8",))

    size = " / ".join(number(c.bytes / 1e6) for c in row("h200"))
    h200, b300 = (" / ".join(number(c.floor_us) for c in row(gpu)) for gpu in ("h200", "b300"))
    line = f"* Floor at 1 / 8 / 64 tokens, TP8: {size} MB; {h200} µs on H200, {b300} µs on B300."
    assert line in " ".join((ROOT / "prompts" / "ops" / f"{name}.md").read_text().split())
