"""What `kgen verify` builds beside the stored objects, so that the model gate has all that it asks for."""

import dataclasses
from pathlib import Path

import pytest
from support import kits

from kgen.gates.contract import DEFECTS
from kgen.gates.sandbox import NoSandboxError, choose
from kgen.loop.reproving import built_beside
from kgen.records import Candidate, Origin
from kgen.store.cache import OBJECT_SUFFIX, objects_in

SOURCE = (Path(__file__).parents[1] / "docs" / "examples" / "moe_shared.py").read_text()


def test_the_small_model_and_the_mutants_are_built_from_the_promoted_source(tmp_path: Path) -> None:
    try:
        choose()
    except NoSandboxError as error:
        pytest.skip(str(error))
    promoted = kits.make(tmp_path, 1).record
    candidate = Candidate(kits.OP.name, SOURCE, Origin("promoted"))
    small, mutants = built_beside(kits.OP, candidate, (promoted,), tmp_path / "cache")
    assert [b.problem for b in small] == [dataclasses.replace(promoted.problem, dims=kits.OP.pack.small)]
    assert [(b.problem, b.defect) for b in mutants] == [(promoted.problem, defect) for defect in DEFECTS]
    blobs = objects_in(tmp_path / "cache")
    assert all(blobs.find(b.object_sha256, OBJECT_SUFFIX) for b in (*small, *mutants))
