"""One candidate's folder in a run: its source, where it came from, and what each gate said."""

import re
from dataclasses import dataclass
from pathlib import Path

from kgen.records import BuildRecord, Candidate, GateResult, Origin, RecordError, Verdict, from_json
from kgen.store.documents import json_bytes, parse_json, read_bytes, read_record
from kgen.store.durable import DURABLE, Durable
from kgen.store.errors import IntegrityError

SOURCE = "kernel.py"
ORIGIN = "origin.json"
VERDICT = "verdict.json"
BUILDS = "builds.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
FOLDER = re.compile(r"(\d{4,})-([0-9a-f]{12})")
MODE = 0o666


def folder_name(number: int, candidate: Candidate) -> str:
    return f"{number:04d}-{candidate.id[:12]}"


def candidate_files(candidate: Candidate) -> dict[str, tuple[bytes, int]]:
    """The files that a candidate folder is created with."""
    return {SOURCE: (candidate.source.encode("utf-8"), MODE), ORIGIN: (json_bytes(candidate.origin), MODE)}


@dataclass(frozen=True)
class CandidateFolder:
    """Reading raises IntegrityError for damaged files; writing raises StoreError. Writers hold the run's lock."""

    path: Path
    op: str
    durable: Durable = DURABLE

    @property
    def number(self) -> int:
        return int(self.path.name.split("-")[0])

    @property
    def short_id(self) -> str:
        return self.path.name.split("-")[1]

    def candidate(self) -> Candidate:
        """The candidate; its source must hash to the folder's name."""
        try:
            source = read_bytes(self.path / SOURCE).decode("utf-8")
        except UnicodeDecodeError:
            raise IntegrityError(f"{self.path / SOURCE} is damaged: not UTF-8") from None
        candidate = Candidate(self.op, source, read_record(Origin, self.path / ORIGIN))
        if candidate.id[:12] != self.short_id:
            raise IntegrityError(f"{self.path / SOURCE} is damaged: its id is {candidate.id[:12]}")
        return candidate

    def file(self, name: str) -> Path:
        """The path of an extra file. Raises ValueError for a name that could leave the folder."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a file name")
        return self.path / name

    def write(self, name: str, data: bytes) -> Path:
        path = self.file(name)
        self.durable.write(path, data)
        return path

    def write_result(self, result: GateResult) -> Path:
        return self.write(f"{result.gate}.json", json_bytes(result))

    def result(self, gate: str) -> GateResult | None:
        path = self.file(f"{gate}.json")
        return read_record(GateResult, path) if path.exists() else None

    def write_builds(self, builds: tuple[BuildRecord, ...]) -> Path:
        """The build records whose objects lie in the blob cache."""
        return self.write(BUILDS, json_bytes(builds))

    def builds(self) -> tuple[BuildRecord, ...]:
        path = self.path / BUILDS
        return parse_builds(read_bytes(path), path) if path.exists() else ()

    def write_verdict(self, verdict: Verdict) -> Path:
        return self.write(VERDICT, json_bytes(verdict))

    def verdict(self) -> Verdict | None:
        path = self.path / VERDICT
        return read_record(Verdict, path) if path.exists() else None

    @property
    def interrupted(self) -> bool:
        return not (self.path / VERDICT).exists()


def parse_builds(data: bytes, where: Path) -> tuple[BuildRecord, ...]:
    """A stored list of build records. Raises IntegrityError."""
    value = parse_json(data, where)
    if not isinstance(value, list):
        raise IntegrityError(f"{where}: expected a list of build records")
    try:
        return tuple(from_json(BuildRecord, item, f"BuildRecord[{i}]") for i, item in enumerate(value))
    except RecordError as error:
        raise IntegrityError(f"{where}: {error}") from None
