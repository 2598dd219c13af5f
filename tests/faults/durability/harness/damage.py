"""Bytes that are not those that were written: bits turned at sampled places, files cut short, files exchanged."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exploits.harness.off import Off
from faults.durability.harness.desk import SEED, Desk
from faults.durability.harness.jobs import SET, case, place
from faults.durability.harness.layer import PLAIN, Order
from support.sets import CURRENT, KEY, OP

from kgen.promotion import promote, rollback, verify
from kgen.records import Promotion
from kgen.store import IntegrityError, KernelSet
from kgen.store.kernelset import MANIFEST, compress

Read = Callable[[KernelSet, Promotion], object]
PARTS: dict[str, tuple[Callable[[KernelSet, Promotion], Path], Read]] = {
    "manifest": (lambda k, p: k.root / MANIFEST, lambda k, p: k.manifest()),
    "source": (lambda k, p: k.path(p.source), lambda k, p: k.source(p)),
    "evidence": (lambda k, p: k.path(p.evidence), lambda k, p: k.evidence(p)),
    "builds": (lambda k, p: k.path(p.builds), lambda k, p: k.builds(p)),
    "raw": (lambda k, p: k.path(p.raw), lambda k, p: k.raw(p)),
    "object": (lambda k, p: k.object_path(next(iter(p.objects.values()))), lambda k, p: k.object(_of(p))),
}


def _of(promotion: Promotion) -> str:
    return next(iter(promotion.objects.values()))


def flipped(data: bytes, every: bool) -> Iterator[tuple[str, bytes]]:
    """A bit of each byte (of 300 of them), or of some."""
    drawn = random.Random(f"{SEED} {len(data)}")
    few = range(0, len(data), max(1, len(data) // 300))
    places = few if every else sorted({0, len(data) - 1, *drawn.choices(range(len(data)), k=12)})
    for at in places:
        yield f"byte {at}", data[:at] + bytes([data[at] ^ 1 << drawn.randrange(8)]) + data[at + 1 :]


def cut_short(data: bytes, every: bool) -> Iterator[tuple[str, bytes]]:
    step = max(1, len(data) // (64 if every else 5))
    for length in range(0, len(data), step):
        yield f"{length} bytes left", data[:length]


def exchanged(data: bytes, every: bool) -> Iterator[tuple[str, bytes]]:
    """Something of the same kind that is whole in itself."""
    yield "another object", compress(b"another object")


WAYS = {"flipped": flipped, "cut short": cut_short, "exchanged": exchanged}


def damaged_part(root: Path, args: dict[str, Any]) -> dict[str, Any]:
    """Damages one part in every way, looks at it each time, and puts it back."""
    kernels = KernelSet(root / SET)
    promotion = kernels.manifest().promotions[-1]
    where, read = PARTS[args["part"]]
    path, tried = where(kernels, promotion), 0
    good = path.read_bytes()
    for what, data in WAYS[args["way"]](good, args["every"]):
        path.write_bytes(data)
        tried += 1
        if breach := _looked_at(root, kernels, promotion, path, read):
            return {"breach": f"{breach} ({what})", "tried": tried}
        path.write_bytes(good)
    return {"breach": "", "tried": tried}


def _looked_at(root: Path, kernels: KernelSet, promotion: Promotion, path: Path, read: Read) -> str:
    try:
        read(kernels, promotion)
        return "accepted: by a reader"
    except IntegrityError as error:
        if "\n" in str(error) or path.name not in str(error):
            return f"message: {error}"
    if verify(place(root), CURRENT).ok:
        return "accepted: by verify"
    if path.name != MANIFEST:
        return ""
    before = path.read_bytes()
    for change in (lambda: promote(place(root), case("third"), CURRENT, KEY), lambda: rollback(place(root), OP)):
        try:
            change()
            return "accepted: by a writer"
        except IntegrityError:
            pass
    return "" if path.read_bytes() == before else "written to"


JOBS = {"damage": damaged_part}


@dataclass(frozen=True)
class Damaged:
    """`part` of a promotion, in one of the `WAYS`: found by its reader and by verify, in one line that names the file.

    Nobody writes to a set whose manifest is damaged.
    """

    part: str
    way: str

    def seen(self, desk: Desk, off: Off) -> str:
        root = desk.copy(desk.template("old", "new"))
        args = {"part": self.part, "way": self.way, "every": desk.every}
        got = desk.stage(off, (*PLAIN, __name__)).run(Order("damage", root, args))
        assert got.status == 0 and got.code == 0, got
        desk.tried[f"damage {self.part} {self.way}"] += got.value["tried"]
        return got.value["breach"] or "found"
