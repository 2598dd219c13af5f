"""Right kernels that look like cheats pass the compile gate of the real compiler: a false alarm is a defect too.

That they are right is what the interpreter shows under make deep, at small dims.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from near_misses.near import BASE, Near, nears
from support.builds import shared

from kgen.gates import numeric
from kgen.gates.compile import CompileGate, CompileReport
from kgen.gates.screen import screen
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin

OP = REGISTRY.get("mla_out_gate")
NEARS = nears()
listed = pytest.mark.parametrize("near", [pytest.param(near, id=name) for name, near in NEARS.items()])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("near")


@pytest.fixture(scope="module")
def gate(cache: Path) -> Iterator[CompileGate]:
    with CompileGate(OP, cache, shared()) as made:
        yield made


def compiled(gate: CompileGate, source: str) -> CompileReport:
    return gate.run(Candidate(OP.name, source, Origin("test")), [OP.problem(OP.pack.small, 2, "sm_90a")])


@listed
def test_a_near_miss_is_another_text_and_has_no_finding(near: Near) -> None:
    assert near.source != BASE and near.looks
    assert screen(near.source) == []


@listed
def test_a_near_miss_passes_the_compile_gate(gate: CompileGate, near: Near) -> None:
    result = compiled(gate, near.source).result
    assert result.code == "compile.pass", result.message


@pytest.mark.deep
@listed
def test_a_near_miss_is_right(gate: CompileGate, cache: Path, near: Near) -> None:
    result = numeric.interpret(OP, compiled(gate, near.source).artefacts, cache=cache)
    assert result.code == "numeric.ptx_pass", result.message
