"""Caches: blobs by their sha256, and JSON results by a key. Everything here can be made again.

A damaged entry counts as absent and is removed; therefore what nothing but the cache itself asks for may be written
without waiting for the disk (`LOOSE`). Not covered: eviction (a user deletes the folder).
"""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from kgen.records import canonical_json, sha256_bytes
from kgen.store.durable import DURABLE, TEMP_PREFIX
from kgen.store.errors import IntegrityError, storing

HEX = frozenset("0123456789abcdef")
OBJECT_SUFFIX = ".o"


def is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= HEX


class Writer(Protocol):
    """How a file comes into a cache: a reader sees all of it or nothing, whatever else dies meanwhile."""

    def write(self, path: Path, data: bytes) -> None:
        """Replace `path` by `data`; missing folders are made. Raises StoreError."""
        ...


class Loose:
    """Atomic for every reader and through kills, but a power cut may leave less than was written, or nothing: for
    files whose readers verify them, and make them again. Two fsyncs less a file than `Durable`."""

    def write(self, path: Path, data: bytes) -> None:
        temp = f"{path.parent}{os.sep}{TEMP_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
        with storing(path):
            try:
                file = open(temp, "xb", buffering=0)  # noqa: PTH123, SIM115  as quick as it can be
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = open(temp, "xb", buffering=0)  # noqa: PTH123, SIM115
            try:
                with file:
                    _whole(file.fileno(), data)
                os.replace(temp, path)  # noqa: PTH105
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp)  # noqa: PTH108
                raise


def _whole(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


LOOSE = Loose()


class Blobs:
    """Files named by the sha256 of their bytes, e.g. `<sha256>.o`."""

    def __init__(self, root: Path, durable: Writer = DURABLE) -> None:
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
            data = _read(path)
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


def objects_in(cache: Path, durable: Writer = DURABLE) -> Blobs:
    """Built objects, PTX and cubins of a cache folder."""
    return Blobs(cache / "objects", durable)


def linked_in(cache: Path) -> Path:
    """Where a cache folder keeps objects that are linked for loading."""
    return cache / "linked"


class Results:
    """JSON values by key. A key is JSON too: everything that the value depends on."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def where(self, key: Mapping[str, Any]) -> Path:
        return self._path(canonical_json(key))

    def _path(self, key: bytes) -> Path:
        name = sha256_bytes(key)
        return Path(f"{self.root}/{name[:2]}/{name}.json")

    def get(self, key: Mapping[str, Any]) -> Any | None:
        """The stored value, or None when it is absent or damaged (then it is removed)."""
        asked = canonical_json(key)
        path = self._path(asked)
        try:
            entry = _read(path)
        except OSError:
            return None
        text = entry[len(_head(asked, b"")) : -1]
        if entry == _head(asked, text) + text + b"}":
            with suppress(ValueError, RecursionError):
                return json.loads(text)
        with suppress(OSError):
            path.unlink()
        return None

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        """Store a JSON value. Raises StoreError."""
        text, name = canonical_json(value), canonical_json(key)
        LOOSE.write(self._path(name), _head(name, text) + text + b"}")


def _head(key: bytes, text: bytes) -> bytes:
    """What stands before the text of a value, so that the whole is canonical JSON too."""
    return b'{"key":' + key + b',"sha256":"' + sha256_bytes(text).encode() + b'","value":'


def _read(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  half the time of Path.read_bytes
        return file.read()
