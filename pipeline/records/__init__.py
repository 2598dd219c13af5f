"""The nouns of kgen as frozen records, and their JSON form. Imports nothing else of the project."""

from kgen.records.artefact import BuildRecord, Compiler, KernelFacts, Launch, LaunchArg, SymmetricBuffer
from kgen.records.codec import (
    RecordError,
    canonical_json,
    from_json,
    one_line,
    sha256_bytes,
    sha256_text,
    strict_json,
    to_json,
)
from kgen.records.core import (
    GATES,
    Candidate,
    GateResult,
    Origin,
    Problem,
    Status,
    Verdict,
)
from kgen.records.evidence import Environment, Evidence, PerfPoint, SignedEvidence
from kgen.records.manifest import Manifest, Promotion

__all__ = [
    "GATES",
    "BuildRecord",
    "Candidate",
    "Compiler",
    "Environment",
    "Evidence",
    "GateResult",
    "KernelFacts",
    "Launch",
    "LaunchArg",
    "Manifest",
    "Origin",
    "PerfPoint",
    "Problem",
    "Promotion",
    "RecordError",
    "SignedEvidence",
    "Status",
    "SymmetricBuffer",
    "Verdict",
    "canonical_json",
    "from_json",
    "one_line",
    "sha256_bytes",
    "sha256_text",
    "strict_json",
    "to_json",
]
