"""Where the files of an audited build are. The record says what they must hash to."""

from dataclasses import dataclass
from pathlib import Path

from kgen.records import BuildRecord


@dataclass(frozen=True)
class Artefact:
    """An audited build: its record, and content-addressed files (`<sha256>.o`, `.ptx`, `.cubin`)."""

    record: BuildRecord
    object: Path
    ptx: Path
    cubin: Path
