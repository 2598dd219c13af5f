"""Caches: blobs by their sha256, and JSON results by a key. Everything here can be made again.

A damaged entry counts as absent and is removed. Not covered: eviction (a user deletes the folder).
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kgen.records import canonical_json, sha256_bytes
from kgen.store.durable import DURABLE, Durable
from kgen.store.errors import IntegrityError

HEX = frozenset("0123456789abcdef")
OBJECT_SUFFIX = ".o"


def is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= HEX


class Blobs:
    """Files named by the sha256 of their bytes, e.g. `<sha256>.o`."""

    def __init__(self, root: Path, durable: Durable = DURABLE) -> None:
        self.root = root
        self.durable = durable

    def where(self, sha256: str, suffix: str = "") -> Path:
        """The path of a blob, there or not. Raises ValueError for something that is no hash."""
        if not is_sha256(sha256):
            raise ValueError(f"{sha256!r} is not a sha256")
        return self.root / f"{sha256}{suffix}"

    def put(self, data: bytes, suffix: str = "") -> str:
        """Store bytes; returns their sha256. Raises StoreError."""
        sha256 = sha256_bytes(data)
        if self.find(sha256, suffix) is None:
            self.durable.write(self.where(sha256, suffix), data)
        return sha256

    def find(self, sha256: str, suffix: str = "") -> Path | None:
        """The verified file, or None when it is absent or damaged (then it is removed)."""
        path = self.where(sha256, suffix)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if sha256_bytes(data) == sha256:
            return path
        with suppress(OSError):
            path.unlink()
        return None

    def get(self, sha256: str, suffix: str = "") -> bytes:
        """The verified bytes. Raises IntegrityError when they are absent or damaged."""
        path = self.where(sha256, suffix)
        data = path.read_bytes() if path.is_file() else None
        if data is None or sha256_bytes(data) != sha256:
            raise IntegrityError(f"{path} is {'missing' if data is None else 'damaged'}; build it again")
        return data


def objects_in(cache: Path) -> Blobs:
    """Built objects, PTX and cubins of a cache folder."""
    return Blobs(cache / "objects")


def linked_in(cache: Path) -> Path:
    """Where a cache folder keeps objects that are linked for loading."""
    return cache / "linked"


class Results:
    """JSON values by key. A key is JSON too: everything that the value depends on."""

    def __init__(self, root: Path, durable: Durable = DURABLE) -> None:
        self.root = root
        self.durable = durable

    def where(self, key: Mapping[str, Any]) -> Path:
        name = sha256_bytes(canonical_json(key))
        return self.root / name[:2] / f"{name}.json"

    def get(self, key: Mapping[str, Any]) -> Any | None:
        """The stored value, or None when it is absent or damaged (then it is removed)."""
        path = self.where(key)
        try:
            entry = json.loads(path.read_bytes())
            if entry["key"] == json.loads(canonical_json(key)) and entry["sha256"] == _digest(entry["value"]):
                return entry["value"]
        except OSError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # damaged: falls through to the removal below
        with suppress(OSError):
            path.unlink()
        return None

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        """Store a JSON value. Raises StoreError."""
        text = canonical_json(value)
        head = canonical_json({"key": key, "sha256": sha256_bytes(text)})
        self.durable.write(self.where(key), head[:-1] + b',"value":' + text + b"}")  # canonical too: in this order


def _digest(value: Any) -> str:
    return sha256_bytes(canonical_json(value))
