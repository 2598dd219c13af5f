"""What a disk may hold after the power was cut: a model of a POSIX file system, fed with the log of the file layer.

What was written to a file is there for sure once the file was synced, and a name once its folder was synced. Until then
each write and each change of a name may have reached the disk or not, in any combination; a write may have reached it
in half, or as zeros of the right length. A rename is one change. Nothing is there that was never written.

Not covered: disks that lie about a sync, and blocks that are lost later.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 48  # combinations that are tried at one moment; more are drawn by seed, with all extremes


@dataclass(eq=False)
class File:
    synced: bytes = b""
    now: bytes = b""

    def versions(self) -> list[bytes]:
        """What may be read after a power cut, what is on the disk for sure first."""
        if self.now == self.synced:
            return [self.synced]
        half, zeros = self.now[: len(self.now) // 2], bytes(len(self.now))
        return list(dict.fromkeys([self.synced, self.now, half, zeros]))


@dataclass(eq=False)
class Folder:
    synced: "dict[str, Node]" = field(default_factory=dict)
    now: "dict[str, Node]" = field(default_factory=dict)
    changes: "list[dict[str, Node | None]]" = field(default_factory=list)  # since the last sync, each of one call

    def change(self, **names: "Node | None") -> None:
        self.changes.append(names)
        self.now = applied(self.now, [names])

    def versions(self) -> "Iterator[dict[str, Node]]":
        for kept in itertools.product((False, True), repeat=min(len(self.changes), 5)):
            kept = (*kept, *[kept[-1]] * (len(self.changes) - 5)) if kept else ()
            yield applied(self.synced, [c for c, keep in zip(self.changes, kept, strict=True) if keep])


Node = File | Folder


def applied(names: dict[str, Node], changes: "Iterable[dict[str, Node | None]]") -> dict[str, Node]:
    found: dict[str, Node | None] = dict(names)
    for change in changes:
        found |= change
    return {name: node for name, node in found.items() if node is not None}


Image = dict[str, bytes | None]  # files with their bytes, folders with None


def loaded(path: Path) -> Folder:
    """A folder as it is, all of it on the disk."""
    nodes: dict[str, Node] = {}
    for entry in path.iterdir():
        data = b"" if entry.is_dir() else entry.read_bytes()
        nodes[entry.name] = loaded(entry) if entry.is_dir() else File(data, data)
    return Folder(dict(nodes), dict(nodes))


@dataclass
class Disk:
    """A watched folder `root`. The folder that it lies in is on the disk; its own names start as they are."""

    root: str
    tree: Folder

    def at(self, path: str) -> Node | None:
        node: Node | None = self.tree
        for part in path.removeprefix(self.root).strip("/").split("/"):
            if part:
                node = node.now.get(part) if isinstance(node, Folder) else None
        return node

    def above(self, path: str) -> tuple[Folder, str]:
        folder, name = path.rsplit("/", 1)
        found = self.at(folder)
        assert isinstance(found, Folder), path
        return found, name

    def apply(self, line: "Line") -> None:
        """A change of the log."""
        kind, path, offset, data = line.kind, line.path, line.offset, line.data
        node = self.at(path)
        if kind == "sync" and isinstance(node, File):
            node.synced = node.now
        elif kind == "sync" and isinstance(node, Folder):
            node.synced, node.changes = dict(node.now), []
        elif kind == "write" and isinstance(node, File):
            node.now = node.now[:offset].ljust(offset, b"\0") + data + node.now[offset + len(data) :]
        elif kind in ("truncate", "resize") and isinstance(node, File):
            node.now = node.now[:offset].ljust(offset, b"\0")
        elif kind in ("create", "mkdir", "unlink", "rmdir"):
            folder, name = self.above(path)
            folder.change(**{name: {"create": File, "mkdir": Folder}.get(kind, lambda: None)()})
        elif kind == "rename":
            (folder, old), (target, new) = self.above(path), self.above(line.other)
            assert folder is target, "a move between folders is not modelled: nothing in the store makes one"
            folder.change(**{old: None, new: node})

    def present(self) -> Image:
        """What a process sees now."""
        return _seen(self.tree, "")

    def images(self, seed: str) -> Iterator[Image]:
        """What may be found after a power cut now."""
        choices = list(self._choices(self.tree, ""))
        total = 1
        for _, versions in choices:
            total *= len(versions)
        if total <= LIMIT:
            picks: Iterable[tuple[int, ...]] = itertools.product(*[range(len(v)) for _, v in choices])
        else:
            drawn = random.Random(seed)
            ends = [tuple(end * (len(v) - 1) for _, v in choices) for end in (0, 1)]
            picks = ends + [tuple(drawn.randrange(len(v)) for _, v in choices) for _ in range(LIMIT)]
        for pick in picks:
            yield self._image({id(n): v[i] for (n, v), i in zip(choices, pick, strict=True)}, self.tree, "")

    def _choices(self, node: Node, name: str) -> "Iterator[tuple[Node, list[bytes] | list[dict[str, Node]]]]":
        versions = list(node.versions())
        if len(versions) > 1:
            yield node, versions  # type: ignore[misc]  # a list of one of the two kinds
        if isinstance(node, Folder):
            for below in {id(n): n for version in versions for n in version.values()}.values():  # type: ignore[union-attr]
                yield from self._choices(below, name)

    def _image(self, chosen: dict[int, object], node: Node, name: str) -> Image:
        if isinstance(node, File):
            return {name: chosen.get(id(node), node.synced)}  # type: ignore[dict-item]
        found: Image = {name: None} if name else {}
        for entry, below in chosen.get(id(node), node.synced).items():  # type: ignore[attr-defined]
            found |= self._image(chosen, below, f"{name}/{entry}".strip("/"))
        return found


def _seen(node: Node, name: str) -> Image:
    if isinstance(node, File):
        return {name: node.now}
    found: Image = {name: None} if name else {}
    for entry, below in node.now.items():
        found |= _seen(below, f"{name}/{entry}".strip("/"))
    return found


@dataclass(frozen=True)
class Line:
    """One line of the layer's log: a change, or a note. `after`: how many changes were counted by then."""

    after: int
    kind: str
    path: str
    other: str
    offset: int
    data: bytes


def lines(log: Path) -> Iterator[Line]:
    for line in log.read_text(encoding="utf-8").splitlines():
        after, kind, path, other, offset, data = line.split("\t")
        yield Line(int(after), kind, path, other, int(offset), bytes.fromhex(data))


def made(image: Image, root: Path) -> None:
    """Put an image into an empty folder."""
    for name, data in sorted(image.items()):
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)
