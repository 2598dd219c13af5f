"""A case for promotion, read from a run folder and the blob cache.

<run>/0001-<sha12>/{kernel.py, verdict.json, builds.json, evidence.json, raw.json.xz}
"""

from kgen.promotion.case import Case, Refused
from kgen.records import SignedEvidence
from kgen.store.cache import OBJECT_SUFFIX, Blobs
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import read_bytes, read_record

EVIDENCE = "evidence.json"
RAW = "raw.json.xz"


def gather(folder: CandidateFolder, blobs: Blobs) -> Case:
    """Raises Refused when the candidate was not judged yet, IntegrityError for damaged or missing parts."""
    verdict = folder.verdict()
    if verdict is None:
        raise Refused(
            "promote.verdict", f"{folder.path.name} has no verdict yet: kgen resume {folder.path.parent.name}"
        )
    if not folder.file(EVIDENCE).exists():
        raise Refused(
            "promote.evidence", f"{folder.path.name} has no evidence from a GPU yet: kgen kit, then kgen ingest"
        )
    signed = read_record(SignedEvidence, folder.file(EVIDENCE))
    raw = folder.file(RAW)
    wanted = set(signed.evidence.objects.values())
    builds = folder.builds()
    needed = {b.object_sha256 for b in builds if b.object_sha256 in wanted}
    return Case(
        candidate=folder.candidate(),
        verdict=verdict,
        evidence=signed,
        builds=builds,
        objects={sha256: blobs.get(sha256, OBJECT_SUFFIX) for sha256 in sorted(needed)},
        raw=read_bytes(raw) if raw.exists() else b"",
        against=_champions(signed),
    )


def _champions(signed: SignedEvidence) -> dict[str, str]:
    """The objects that served when it was measured, by problem key.

    Evidence that does not say was measured against the stock op alone: it displaces no other kernel.
    """
    found = signed.evidence.facts.get("champions")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
