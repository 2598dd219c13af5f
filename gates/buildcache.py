"""Results of builds by content: what one candidate came to for one problem, a pass or a failure that lasts.

Which failures last is said in builder/outcome.py; the compile gate hands in no others.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgen.gates.artefacts import Artefact
from kgen.gates.contract import GATE_CONTRACT
from kgen.records import BuildRecord, Candidate, Compiler, Problem, Status, from_json, sha256_bytes, to_json
from kgen.store.cache import LOOSE, OBJECT_SUFFIX, Results, objects_in

Key = Mapping[str, Any]
SCREENING = ("screen", "skeleton", "parsing")  # modules that decide what the screen finds


@dataclass(frozen=True)
class Outcome:
    """What one problem came to. `artefact` is there on a pass only; `lasts`: a failure that may be remembered."""

    status: Status
    code: str
    message: str
    seconds: float
    cached: bool = False
    artefact: Artefact | None = None
    lasts: bool = False


def passed(artefact: Artefact, cached: bool = False) -> Outcome:
    return Outcome(Status.PASS, "compile.pass", "", artefact.record.compile_seconds, cached, artefact)


@functools.cache
def _rules() -> str:
    """Hash of the screen's, builder's and audit's sources: results of other rules are not taken from the cache."""
    here = Path(__file__).parent
    screening = [here / f"{name}.py" for name in SCREENING]
    files = sorted([*screening, *(here / "builder").glob("*.py"), *(here / "audit").glob("*.[pc]*")])
    return sha256_bytes(b"\0".join(f.read_bytes() for f in files if f.is_file()))


class BuildCache:
    """Under `root`: objects/<sha256>.o, .ptx, .cubin, and builds/ with one JSON file a result.

    Objects survive a power cut, since runs name them; what else is lost then is built again when it is asked for.
    """

    def __init__(self, root: Path, compiler: Compiler, op_contract: str, unfenced: bool) -> None:
        self.compiler = compiler
        self._blobs, self._beside, self._results = objects_in(root), objects_in(root, LOOSE), Results(root / "builds")
        self._common = {
            "compiler": to_json(compiler),
            "gate_contract": GATE_CONTRACT,
            "rules": _rules(),
            "op_contract": op_contract,
            "unfenced": unfenced,  # what was built without a sandbox is never taken for something else
        }

    def key(self, candidate: Candidate, problem: Problem, defect: str) -> Key:
        """Everything that an outcome depends on."""
        return {"candidate": candidate.id, "problem": problem.key, "defect": defect, **self._common}

    def get(self, key: Key) -> Outcome | None:
        """None when it is absent, or one of its files is missing or damaged."""
        value = self._results.get(key)
        if value is None:
            return None
        if value["status"] != Status.PASS:
            status, seconds = Status(value["status"]), value["seconds"]
            return Outcome(status, value["code"], value["message"], seconds, cached=True, lasts=True)
        artefact = self._artefact(from_json(BuildRecord, value["record"]), value["ptx_sha256"])
        return None if artefact is None else passed(artefact, cached=True)

    def fail(self, key: Key, outcome: Outcome) -> None:
        fields = {"code": outcome.code, "message": outcome.message, "seconds": outcome.seconds}
        self._results.put(key, {"status": outcome.status.value, **fields})

    def keep(self, key: Key, record: BuildRecord, object_: bytes, ptx: str, cubin: bytes) -> Artefact:
        """Store a pass and its files. Raises StoreError."""
        kept = (
            (self._blobs, object_, OBJECT_SUFFIX),
            (self._beside, ptx.encode(), ".ptx"),
            (self._beside, cubin, ".cubin"),
        )
        hashes = [blobs.put(data, suffix) for blobs, data, suffix in kept]
        assert (hashes[0], hashes[2]) == (record.object_sha256, record.cubin_sha256)
        self._results.put(key, {"status": "pass", "record": to_json(record), "ptx_sha256": hashes[1]})
        files = [blobs.where(sha256, suffix) for sha256, (blobs, _, suffix) in zip(hashes, kept, strict=True)]
        return Artefact(record, *files)

    def _artefact(self, record: BuildRecord, ptx_sha256: str) -> Artefact | None:
        files = (
            self._blobs.find(record.object_sha256, OBJECT_SUFFIX),
            self._blobs.find(ptx_sha256, ".ptx"),
            self._blobs.find(record.cubin_sha256, ".cubin"),
        )
        return None if None in files else Artefact(record, *(f for f in files if f is not None))
