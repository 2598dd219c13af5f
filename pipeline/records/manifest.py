"""The manifest of a kernel set: which promoted kernel serves which point, and the history that led there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

OWN_KEY, SELF_REPORTED = "own-key", "self-reported"  # evidence signed with the run's key, or taken on trust


@dataclass(frozen=True)
class Promotion:
    """One promoted kernel. `objects` maps problem keys of the envelope to stored object hashes."""

    SCHEMA: ClassVar[str] = "kgen.promotion/1"
    seq: int
    op: str
    candidate: str
    arch: str
    source: str  # path inside the set, e.g. moe_shared/<id12>.py
    source_sha256: str
    evidence: str  # path inside the set
    evidence_sha256: str
    op_contract: str
    gate_contract: int
    objects: Mapping[str, str]
    labels: Mapping[str, str]  # problem key -> win | tie
    run: str
    trust: str  # OWN_KEY or SELF_REPORTED
    promoted: str  # UTC, ISO 8601
    workspaces: Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)  # problem key -> exported function name
    launches: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # problem key -> kernel -> launches a call
    previous: Mapping[str, int] = field(default_factory=dict)  # problem key -> seq that served it before (0: stock)
    builds: str = ""  # path inside the set: build records, to which `verify` compares a rebuild
    builds_sha256: str = ""
    raw: str = ""  # path inside the set: compressed raw samples; their hash is in the evidence


@dataclass(frozen=True)
class Manifest:
    """`champions` maps a problem key to the seq of the promotion that serves it now; `seq` only ever grows."""

    SCHEMA: ClassVar[str] = "kgen.manifest/1"
    seq: int = 0
    promotions: tuple[Promotion, ...] = ()
    champions: Mapping[str, int] = field(default_factory=dict)
    history: tuple[Mapping[str, str], ...] = ()  # one line an event: seq, event, op, candidate, when
    checksum: str = ""  # sha256 of the canonical JSON of all other fields: finds a flipped bit anywhere

    def promotion(self, seq: int) -> Promotion | None:
        return next((p for p in self.promotions if p.seq == seq), None)

    def champion(self, key: str) -> Promotion | None:
        seq = self.champions.get(key)
        return None if seq is None else self.promotion(seq)
