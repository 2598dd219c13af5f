"""Putting a kernel into a set, in one step: everything it consists of first, the manifest last.

Covered: SIGKILL, full disk and power cut at any moment leave the old state or the new one; promoters queue on the set's
lock; numbers only grow; files that a manifest names are never overwritten. Not covered: removing old promotions.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from kgen.promotion.case import Case, Claim, Refused, examine
from kgen.promotion.champions import same_kernel
from kgen.promotion.freshness import Current
from kgen.records import BuildRecord, Manifest, Promotion, sha256_bytes
from kgen.store.documents import json_bytes
from kgen.store.durable import DURABLE, LOCK_NAME, TEMP_PREFIX, Durable, locked, sweep, sync_folder
from kgen.store.errors import IntegrityError, storing
from kgen.store.kernelset import MANIFEST, OBJECTS, KernelSet, compress, inconsistency, manifest_bytes
from kgen.store.paths import SetPath
from kgen.store.runs import utc_now

MAX_SET_BYTES = 24_000_000  # a set must stay small enough to be reviewed and to ship in the package


@dataclass(frozen=True)
class _Names:
    """Where a promotion's parts go inside the set."""

    source: str
    evidence: str
    builds: str
    raw: str


def promote(
    target: SetPath, case: Case, current: Current, key: bytes = b"", trust: bool = False, durable: Durable = DURABLE
) -> Promotion:
    """Promote a case into a set and return its record; the same case again returns the record there is.

    `key` is the run's key, b"" when it is not ours; `trust` accepts evidence that is not signed with it.
    Raises Refused, IntegrityError or StoreError; the set is then as it was.
    """
    root = target.require_writable()
    claim = examine(case, current, key, trust)
    durable.make_folder(root)
    with locked(root):
        sweep(root)
        manifest = KernelSet(root).manifest()
        if (known := _already(manifest, case, claim)) is not None:
            with storing(root):
                sync_folder(root)  # the promoter may have died before that
            return known
        _not_superseded(KernelSet(root), manifest, case, claim)
        promotion, files = _compose(manifest, case, claim)
        after = _with(manifest, promotion)
        if complaint := inconsistency(after):
            raise IntegrityError(f"the case contradicts itself: {complaint}")
        _fits(root, files)
        for name, data in files.items():
            _store(durable, KernelSet(root), name, data)
        durable.write(root / MANIFEST, manifest_bytes(after))
    return promotion


def _store(durable: Durable, kernels: KernelSet, name: str, data: bytes) -> None:
    """Write one part. What is there and whole stays as it is, whichever xz made it; what is damaged is replaced."""
    path = kernels.root / name
    try:
        whole = path.is_file() and (path.read_bytes() == data or _holds_object(kernels, path))
    except OSError:
        whole = False
    if not whole:
        durable.write(path, data)
        return
    durable.make_folder(path.parent)
    with storing(path):
        sync_folder(path.parent)  # its writer may have died before that


def _holds_object(kernels: KernelSet, path: Path) -> bool:
    if path.parent.name != OBJECTS:
        return False
    try:
        kernels.object(path.name.split(".")[0])
    except IntegrityError:
        return False
    return True


def _already(manifest: Manifest, case: Case, claim: Claim) -> Promotion | None:
    """The promotion of this very case, when it still serves all that it claims."""
    sha256 = sha256_bytes(json_bytes(case.evidence))
    for promotion in reversed(manifest.promotions):
        serves = all(manifest.champions.get(k) == promotion.seq for k in promotion.objects)
        same = promotion.evidence_sha256 == sha256 and dict(promotion.labels) == dict(claim.labels)
        if same and serves and promotion.trust == claim.trust:
            return promotion
    return None


def _not_superseded(kernels: KernelSet, manifest: Manifest, case: Case, claim: Claim) -> None:
    """What serves now is what the case was measured against, or the case's own kernel under earlier evidence."""
    if case.against is None:
        return
    for key in claim.labels:
        champion = manifest.champion(key)
        now = champion.objects[key] if champion else ""
        if now != case.against.get(key, "") and not _own(kernels, champion, claim.builds[key]):
            what = f"#{champion.seq} serves {key} now" if champion else f"{key} is served by the stock op now"
            raise Refused("promote.superseded", f"measured against another champion: {what}; run perf-sweep again")


def _own(kernels: KernelSet, champion: Promotion | None, build: BuildRecord) -> bool:
    """Whether what serves there is this very kernel, built at another time."""
    if champion is None:
        return False
    serving = {record.problem.key: record for record in kernels.builds(champion)}
    return same_kernel(serving[build.problem.key], build)


def _compose(manifest: Manifest, case: Case, claim: Claim) -> tuple[Promotion, dict[str, bytes]]:
    """The promotion's record and its files by path in the set, in the order of writing."""
    evidence, builds = case.evidence.evidence, claim.builds
    parts = {
        "py": case.candidate.source.encode("utf-8"),
        "raw.json.xz": case.raw,
        "builds.json": json_bytes([builds[k] for k in sorted(builds)]),
        "evidence.json": json_bytes(case.evidence),
    }
    seq = manifest.seq + 1
    names = _names(manifest, case, parts, seq)
    files = {f"{OBJECTS}/{sha}.o.xz": compress(data) for sha, data in claim.objects.items()}
    for name, data in zip((names.source, names.raw, names.builds, names.evidence), parts.values(), strict=True):
        if name:
            files[name] = data
    promotion = Promotion(
        seq=seq,
        op=evidence.op,
        candidate=case.candidate.id,
        arch=evidence.arch,
        source=names.source,
        source_sha256=sha256_bytes(parts["py"]),
        evidence=names.evidence,
        evidence_sha256=sha256_bytes(parts["evidence.json"]),
        op_contract=evidence.op_contract,
        gate_contract=evidence.gate_contract,
        objects={k: b.object_sha256 for k, b in builds.items()},
        labels=dict(claim.labels),
        run=evidence.run,
        trust=claim.trust,
        promoted=utc_now(),
        workspaces={k: b.workspaces for k, b in builds.items()},
        functions={k: b.function for k, b in builds.items()},
        launches={k: b.launch_counts() for k, b in builds.items()},
        previous={k: manifest.champions.get(k, 0) for k in builds},
        builds=names.builds,
        builds_sha256=sha256_bytes(parts["builds.json"]),
        raw=names.raw,
    )
    return promotion, files


def _names(manifest: Manifest, case: Case, parts: dict[str, bytes], seq: int) -> _Names:
    """`<op>/<id12>.<kind>`, or with the promotion's number in it where a manifest already names that path."""
    stem = f"{case.candidate.op}/{case.candidate.id[:12]}"
    taken: dict[str, str] = {}
    evidence_sha256 = sha256_bytes(parts["evidence.json"])
    for p in manifest.promotions:
        taken |= {p.source: p.source_sha256, p.evidence: p.evidence_sha256, p.builds: p.builds_sha256}
        taken[p.raw] = sha256_bytes(parts["raw.json.xz"]) if p.evidence_sha256 == evidence_sha256 else ""
    chosen = []
    for kind, data in parts.items():
        name = f"{stem}.{kind}"
        free = name not in taken or taken[name] == sha256_bytes(data)
        chosen.append((name if free else f"{stem}.{seq}.{kind}") if data else "")
    source, raw, builds, evidence = chosen
    return _Names(source, evidence, builds, raw)


def _fits(root: Path, files: dict[str, bytes]) -> None:
    """Raises Refused when the set would outgrow its limit. Damaged files of the same name count as replaced."""
    with storing(root, "read"):
        present = {
            str(p.relative_to(root)): p.stat().st_size
            for p in root.rglob("*")
            if p.is_file() and p.name != LOCK_NAME and not p.name.startswith(TEMP_PREFIX)
        }
    total = sum((present | {name: len(data) for name, data in files.items()}).values())
    if total > MAX_SET_BYTES:
        raise Refused("promote.size", f"{root} would hold {total / 1e6:.1f} MB, more than {MAX_SET_BYTES / 1e6:.0f} MB")


def _with(manifest: Manifest, promotion: Promotion) -> Manifest:
    return replace(
        manifest,
        seq=promotion.seq,
        promotions=(*manifest.promotions, promotion),
        champions={**manifest.champions, **dict.fromkeys(promotion.objects, promotion.seq)},
        history=(*manifest.history, event(promotion.seq, "promote", promotion)),
    )


def event(seq: int, what: str, promotion: Promotion) -> dict[str, str]:
    """One line of history."""
    return {
        "seq": str(seq),
        "event": what,
        "op": promotion.op,
        "arch": promotion.arch,
        "promotion": str(promotion.seq),
        "candidate": promotion.candidate,
        "trust": promotion.trust,
        "when": utc_now(),
    }
