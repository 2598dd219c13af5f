"""Records in files: strict on reading, one line on damage."""

import json
from pathlib import Path
from typing import Any, TypeVar

from kgen.records import RecordError, from_json, strict_json, to_json
from kgen.store.errors import IntegrityError, storing

R = TypeVar("R")


def json_bytes(value: Any) -> bytes:
    """The readable, deterministic form in which JSON is stored: sorted keys, one space of indent, final newline."""
    text = json.dumps(to_json(value), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def read_bytes(path: Path) -> bytes:
    """Raises IntegrityError when there is no such file, StoreError when it cannot be read."""
    with storing(path, "read"):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise IntegrityError(f"{path} is missing") from None


def parse_json(data: bytes, where: Path | str) -> Any:
    """Raises IntegrityError for anything that is not JSON in UTF-8."""
    try:
        return strict_json(data)
    except RecordError as error:
        raise IntegrityError(f"{where} is damaged: {error}") from None


def parse_record(cls: type[R], data: bytes, where: Path | str) -> R:
    """Raises IntegrityError that names the file and the field; for a newer schema it says to upgrade."""
    value = parse_json(data, where)
    try:
        return from_json(cls, value)
    except RecordError as error:
        raise IntegrityError(f"{where}: {error}") from None


def read_record(cls: type[R], path: Path) -> R:
    """Raises IntegrityError or StoreError."""
    return parse_record(cls, read_bytes(path), path)
