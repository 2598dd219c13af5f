"""Builds the kernels as candidates are built, and says what each is: source, machine code, object."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner_faults.kernels import EXPECTED, EXPECTED_BUILD, SOURCES
from support.builds import shared

from kgen.gates.artefacts import Artefact
from kgen.gates.compile import CompileGate
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin, sha256_text, to_json

OP = REGISTRY.get("mla_out_gate")
TOKENS, ARCH = 2, "sm_90a"


def build(cache: Path, keys: Iterable[str] = SOURCES) -> dict[str, Artefact]:
    """By key. Raises RuntimeError for a kernel that the compile gate refuses, but for what may hang by its very text:
    that is what is tried here."""
    problem = OP.problem(OP.pack.small, TOKENS, ARCH)
    found: dict[str, Artefact] = {}
    with CompileGate(OP, cache, shared()) as gate:
        for key in keys:
            candidate = Candidate(OP.name, SOURCES[key], Origin("test"))
            result = gate.run(candidate, [problem]).result
            artefact = gate.one(candidate, problem).artefact
            if result.code != EXPECTED_BUILD.get(key, "compile.pass") or artefact is None:
                raise RuntimeError(f"{key}: {result.code}: {result.message}")
            found[key] = artefact
    return found


def facts(key: str, artefact: Artefact) -> dict[str, Any]:
    """What a result says about a kernel, and a test compares."""
    return {
        "source_sha256": sha256_text(SOURCES[key]),
        "code": {k.name: k.code_sha256 for k in artefact.record.kernels},
        "compiler": to_json(artefact.record.compiler),
        "object_sha256": artefact.record.object_sha256,
        "expected": list(EXPECTED[key]),
    }
