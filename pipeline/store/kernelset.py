"""Reading a kernel set. Every byte handed out has been checked against the manifest, and the manifest against itself.

    <set>/manifest.json, <set>/<op>/<id12>.{py,evidence.json,builds.json,raw.json.xz}, <set>/objects/<sha256>.o.xz

Needs no lock: files never change once a manifest names them, and the manifest is replaced in one step.
Writing is in `kgen.promotion`. Hashes find damage; they are no signature: who can write the set can replace it whole.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from kgen.records import (
    BuildRecord,
    Manifest,
    Problem,
    Promotion,
    SignedEvidence,
    canonical_json,
    sha256_bytes,
    to_json,
)
from kgen.records.manifest import OWN_KEY, SELF_REPORTED
from kgen.store.cache import is_sha256
from kgen.store.candidates import parse_builds
from kgen.store.documents import json_bytes, parse_json, parse_record, read_bytes
from kgen.store.errors import IntegrityError

MANIFEST = "manifest.json"
OBJECTS = "objects"
MAX_OBJECT_BYTES = 16 << 20  # an object is 15-40 KB compressed; a bomb stops here
MAX_WINDOW = 8 << 20  # of preset 6
MAX_DECODER_BYTES = 64 << 20  # memory; preset 6 needs 9 MB
LABELS = ("win", "tie")
TRUST = (OWN_KEY, SELF_REPORTED)


def checksum(manifest: Manifest) -> str:
    return sha256_bytes(canonical_json(to_json(replace(manifest, checksum=""))))


def manifest_bytes(manifest: Manifest) -> bytes:
    """The file form of a manifest, sealed with its checksum."""
    return json_bytes(replace(manifest, checksum=checksum(manifest)))


def parse_problem(key: str) -> Problem:
    """The problem that `Problem.key` names. Raises ValueError for anything else."""
    parts = key.split("/")
    if len(parts) < 4 or not parts[2].startswith("t") or not parts[2][1:].isdecimal():
        raise ValueError(f"{key!r:.120} is not a problem key")
    axes = dict(part.split("=", 1) for part in parts[4:] if "=" in part)
    problem = Problem(parts[0], parts[1], int(parts[2][1:]), parts[3], axes)
    if problem.key != key:
        raise ValueError(f"{key!r:.120} is not a problem key")
    return problem


def compress(data: bytes) -> bytes:
    """The stored form of objects and raw samples. A window as wide as the data loses nothing, and takes less memory."""
    window = min(MAX_WINDOW, max(4096, 1 << len(data).bit_length()))
    return lzma.compress(
        data, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "dict_size": window}]
    )


def decompress(data: bytes, limit: int, where: Path) -> bytes:
    """Raises IntegrityError for damage or more than `limit` bytes."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_DECODER_BYTES)
    try:
        out = decoder.decompress(data, max_length=limit + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise IntegrityError(f"{where} is damaged: {error}") from None
    if len(out) > limit:
        raise IntegrityError(f"{where} holds more than {limit} bytes")
    if not decoder.eof or decoder.unused_data:
        raise IntegrityError(f"{where} is damaged: not one whole xz stream")
    return out


@dataclass(frozen=True)
class KernelSet:
    """A set's folder, for reading. Methods raise IntegrityError (missing, damaged) or StoreError (unreadable)."""

    root: Path

    def exists(self) -> bool:
        return (self.root / MANIFEST).is_file()

    def manifest(self) -> Manifest:
        """The checked manifest; an empty one where the set has none yet."""
        path = self.root / MANIFEST
        if not path.exists():
            return Manifest()
        data = read_bytes(path)
        if complaint := _foreign_schema(data):
            raise IntegrityError(f"{path}: {complaint}")
        manifest = parse_record(Manifest, data, path)
        if manifest.checksum != checksum(manifest):
            raise IntegrityError(f"{path} is damaged: its checksum does not fit; restore it from version control")
        if complaint := inconsistency(manifest):
            raise IntegrityError(f"{path} contradicts itself: {complaint}")
        return manifest

    def path(self, name: str) -> Path:
        """A file named in the manifest. Raises IntegrityError for a name that leaves the set."""
        pure = PurePosixPath(name)
        if not name or pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name:
            raise IntegrityError(f"{self.root / MANIFEST} names {name!r}, which is outside the set")
        return self.root / pure

    def read(self, name: str, sha256: str) -> bytes:
        """A file of the set, checked against its hash."""
        path = self.path(name)
        data = read_bytes(path)
        if sha256_bytes(data) != sha256:
            raise IntegrityError(f"{path} is damaged: its hash is not the recorded one")
        return data

    def source(self, promotion: Promotion) -> str:
        data = self.read(promotion.source, promotion.source_sha256)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise IntegrityError(f"{self.path(promotion.source)} is not UTF-8") from None

    def evidence(self, promotion: Promotion) -> SignedEvidence:
        data = self.read(promotion.evidence, promotion.evidence_sha256)
        return parse_record(SignedEvidence, data, self.path(promotion.evidence))

    def builds(self, promotion: Promotion) -> tuple[BuildRecord, ...]:
        """Build records of the promoted objects; none when the promotion stored none."""
        if not promotion.builds:
            return ()
        return parse_builds(self.read(promotion.builds, promotion.builds_sha256), self.path(promotion.builds))

    def raw(self, promotion: Promotion) -> bytes:
        """Compressed raw samples, checked against the evidence; empty when there are none."""
        return self.read(promotion.raw, self.evidence(promotion).evidence.raw_sha256) if promotion.raw else b""

    def object_path(self, sha256: str) -> Path:
        if not is_sha256(sha256):
            raise IntegrityError(f"{self.root / MANIFEST} names an object {sha256!r}, which is not a sha256")
        return self.root / OBJECTS / f"{sha256}.o.xz"

    def object(self, sha256: str) -> bytes:
        """The bytes of a stored object, decompressed and checked against its name."""
        path = self.object_path(sha256)
        data = decompress(read_bytes(path), MAX_OBJECT_BYTES, path)
        if sha256_bytes(data) != sha256:
            raise IntegrityError(f"{path} is damaged: its hash is not the recorded one")
        return data


def _foreign_schema(data: bytes) -> str:
    """One line when the manifest is of another schema version, said before anything else is looked at."""
    value: Any = parse_json(data, MANIFEST)
    found = value.get("schema") if isinstance(value, dict) else None
    if found == Manifest.SCHEMA:
        return ""
    if isinstance(found, str) and found.startswith(Manifest.SCHEMA.rsplit("/", 1)[0] + "/"):
        return f"written by another kgen ({found}; this one reads {Manifest.SCHEMA}): upgrade kgen"
    return f"not a kernel set's manifest (schema {json.dumps(found)[:60]})"


def inconsistency(manifest: Manifest) -> str:
    """The first contradiction inside a manifest, "" when there is none."""
    seqs = [p.seq for p in manifest.promotions]
    if seqs != sorted(set(seqs)) or any(not 0 < s <= manifest.seq for s in seqs):
        return "promotion numbers do not grow strictly up to seq"
    for key, seq in manifest.champions.items():
        champion = manifest.promotion(seq)
        if champion is None or key not in champion.objects:
            return f"the champion of {key} is #{seq}, which does not exist or does not serve it"
    return next((text for p in manifest.promotions if (text := _promotion_inconsistency(p))), "")


def _promotion_inconsistency(promotion: Promotion) -> str:
    name = f"promotion #{promotion.seq}"
    keyed: Mapping[str, Mapping[str, Any]] = {
        "labels": promotion.labels,
        "functions": promotion.functions,
        "workspaces": promotion.workspaces,
        "launches": promotion.launches,
        "previous": promotion.previous,
    }
    for field, mapping in keyed.items():
        if set(mapping) != set(promotion.objects):
            return f"{name}: {field} and objects name different problems"
    if promotion.trust not in TRUST or any(label not in LABELS for label in promotion.labels.values()):
        return f"{name}: unknown trust or label"
    for key in promotion.objects:
        try:
            problem = parse_problem(key)
        except ValueError as error:
            return f"{name}: {error}"
        if problem.op != promotion.op or problem.arch != promotion.arch:
            return f"{name} is about {promotion.op} on {promotion.arch}, but names {key}"
    return ""
