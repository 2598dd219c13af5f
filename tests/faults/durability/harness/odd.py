"""Single odd moments: newer schemas, two kernels with one short id, a clock that goes back, locks that do not work."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exploits.harness.off import Off
from faults.durability.harness.desk import Desk
from faults.durability.harness.jobs import RUNS, SET, case, fill_run, place
from faults.durability.harness.layer import PLAIN, Order
from faults.durability.harness.state import state
from support.sets import CURRENT, KEY, OP, WIN, make_case

from kgen.promotion import gather, promote, rollback, verify
from kgen.records import Candidate, Origin, sha256_bytes
from kgen.store import Blobs, IntegrityError, KernelSet, Runs
from kgen.store.documents import json_bytes
from kgen.store.kernelset import MANIFEST, manifest_bytes

ALIKE = "# af7f654bdeec\n", "# 8b845cdcca4a\n"  # the ids of both, for this op, begin with 99a4fe6f4719


def refusal(action: Callable[[], object]) -> str:
    """The line of an IntegrityError, "" where there was none."""
    try:
        action()
    except IntegrityError as error:
        return str(error)
    return ""


def newer_manifest(root: Path, args: dict[str, Any]) -> str:
    path = root / SET / MANIFEST
    path.write_bytes(path.read_bytes().replace(b"kgen.manifest/1", b"kgen.manifest/2"))
    before = path.read_bytes()
    actions: tuple[Callable[[], object], ...] = (
        lambda: KernelSet(root / SET).manifest(),
        lambda: promote(place(root), case("third"), CURRENT, KEY),
        lambda: rollback(place(root), OP),
    )
    for action in actions:
        if "upgrade kgen" not in refusal(action):
            return "accepted" if path.read_bytes() == before else "written to"
    return "refused"


def newer_evidence(root: Path, args: dict[str, Any]) -> str:
    """Evidence of a newer kgen under a manifest of ours."""
    kernels = KernelSet(root / SET)
    before = kernels.manifest()
    promotion = before.promotions[-1]
    path = kernels.path(promotion.evidence)
    data = path.read_bytes().replace(b'"kgen.evidence/1"', b'"kgen.evidence/2"')
    assert data != path.read_bytes()
    path.write_bytes(data)
    other = replace(promotion, evidence_sha256=sha256_bytes(data))
    (root / SET / MANIFEST).write_bytes(manifest_bytes(replace(before, promotions=(*before.promotions[:-1], other))))
    lines = [f.message for f in verify(place(root), CURRENT).findings if f.outcome == "bad"]
    return "refused" if any("upgrade kgen" in line for line in lines) else "accepted"


def newer_run(root: Path, args: dict[str, Any]) -> str:
    """Every record of a run's folder in turn, as a newer kgen would have written it."""
    fill_run(root, {})
    (run,) = Runs(root / RUNS).list()
    reads: dict[str, Callable[[], object]] = {
        "run.json": lambda: run.info,
        "origin.json": lambda: run.folder("1").candidate(),
        "compile.json": lambda: run.folder("1").result("compile"),
        "verdict.json": lambda: run.folder("1").verdict(),
    }
    for name, read in reads.items():
        path = run.path / name if name == "run.json" else run.folder("1").path / name
        good = path.read_bytes()
        record = json.loads(good)
        path.write_bytes(json_bytes({**record, "schema": record["schema"].replace("/1", "/2")}))
        line = refusal(read)
        if "upgrade kgen" not in line or name not in line or "\n" in line:
            return f"accepted: {name}: {line}"
        path.write_bytes(good)
    return "refused"


def alike(number: int) -> Any:
    text = ALIKE[number].removeprefix("# ").removesuffix("\n")
    return make_case(text, {1: WIN}, objects={1: f"object {number}".encode()})


def alike_in_a_set(root: Path, args: dict[str, Any]) -> str:
    first, second = (promote(place(root), alike(n), CURRENT, KEY) for n in (0, 1))
    assert first.candidate[:12] == second.candidate[:12] and first.candidate != second.candidate
    kernels = KernelSet(root / SET)
    if not verify(place(root), CURRENT).ok:
        return "damaged"
    sources = tuple(kernels.source(p) for p in (first, second))
    return "both" if sources == ALIKE else "mixed up"


def alike_in_a_run(root: Path, args: dict[str, Any]) -> str:
    """The source of a judged candidate is exchanged for one with the same short id, and put forward."""
    made = alike(0)
    run = Runs(root / RUNS).create(OP, "propose", "0.1.0")
    made = replace(made, evidence=replace(made.evidence, hmac=""))
    blobs = Blobs(root / "cache")
    for data in made.objects.values():
        blobs.put(data, ".o")
    with run.lock():
        folder = run.add(made.candidate)
        folder.write_builds(made.builds)
        folder.write("evidence.json", json_bytes(made.evidence))
        folder.write("raw.json.xz", made.raw)
        folder.write_verdict(made.verdict)
        other = Candidate(OP, ALIKE[1], Origin("test"))
        if run.add(other).candidate() != made.candidate:
            return "overwritten"
    (folder.path / "kernel.py").write_text(ALIKE[1])
    line = refusal(lambda: promote(place(root), gather(folder, blobs), CURRENT, b"", trust=True))
    return "refused" if line and "\n" not in line else "accepted"


def promote_at(root: Path, args: dict[str, Any]) -> str:
    """After promotions of a later date by the clock."""
    before = KernelSet(root / SET).manifest()
    after = promote(place(root), case("third"), CURRENT, KEY)
    now = KernelSet(root / SET).manifest()
    undone = rollback(place(root), OP)
    if not verify(place(root), CURRENT).ok:
        return "damaged"
    served = set(now.champions.values()) == {after.seq} and undone.undone.seq == after.seq
    return "whole" if served and after.seq == before.seq + 1 and after.promoted < "2020" else "mixed up"


def begin_run(root: Path, args: dict[str, Any]) -> str:
    """A run; the answer is which one `latest` is now, by its command."""
    Runs(root / RUNS).create(OP, args["command"], "0.1.0")
    return Runs(root / RUNS).find("latest").info.command


JOBS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "newer manifest": newer_manifest,
    "newer evidence": newer_evidence,
    "newer run": newer_run,
    "alike in a set": alike_in_a_set,
    "alike in a run": alike_in_a_run,
    "promote at": promote_at,
    "begin run": begin_run,
}


@dataclass(frozen=True)
class Odd:
    """A job that says itself what it saw; `clock`: seconds that the clock is off."""

    job: str
    given: tuple[str, ...] = ()
    clock: int = 0

    def seen(self, desk: Desk, off: Off) -> str:
        root = desk.copy(desk.template(*self.given))
        got = desk.stage(off, (*PLAIN, __name__)).run(Order(self.job, root, clock=self.clock))
        assert got.status == 0, got
        return str(got.value) if got.code == 0 else f"exit {got.code}: {got.line}"


@dataclass(frozen=True)
class Latest:
    """Two runs, the second of them begun after the clock went back by `seconds`, or at once: which is the latest?"""

    seconds: int = 0

    def seen(self, desk: Desk, off: Off) -> str:
        stage, root = desk.stage(off, (*PLAIN, __name__)), desk.fresh()
        for number in range(6):
            command = f"kgen propose {number}"
            clock = -self.seconds * number
            got = stage.run(Order("begin run", root, {"command": command}, clock=clock))
            assert got.status == 0 and got.code == 0, got
            if got.value != command:
                return f"an older one: {got.value} after {command}"
        return "the newest"


@dataclass(frozen=True)
class Quirk:
    """A promotion on a file system that refuses every lock, or every sync of a folder, with this errno."""

    lock: int = 0
    folder_sync: int = 0
    args: dict[str, Any] = field(default_factory=lambda: {"text": "new"}, hash=False)

    def seen(self, desk: Desk, off: Off) -> str:
        root = desk.copy(desk.template("old"))
        before = state(root)
        order = Order("promote", root, self.args, lock=self.lock, folder_sync=self.folder_sync)
        got = desk.stage(off).run(order)
        assert got.status == 0, got
        if got.code == 0:
            return "promoted"
        one = "\n" not in got.line and str(root) in got.line
        return f"exit {got.code}" + ("" if state(root) == before else ": changed") + ("" if one else f": {got.line}")
