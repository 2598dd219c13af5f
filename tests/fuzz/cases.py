"""Inputs that once broke a parser: `cases/<target>/<what happened>`, as they are (`.bin`), or compressed
(`.xz`) where large."""

import lzma
from pathlib import Path

from fuzz.target import CASES

SMALL = 2048  # bytes that are kept as they are


def cases() -> list[Path]:
    return sorted(path for path in CASES.glob("*/*") if path.is_file())


def load(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def keep(target: str, name: str, data: bytes) -> Path:
    """Write a case. Its name says what went wrong, in words."""
    path = CASES / target / f"{name}.{'bin' if len(data) <= SMALL else 'xz'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if len(data) <= SMALL else lzma.compress(data, preset=9))
    return path
