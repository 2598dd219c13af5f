"""A kit at work on a GPU host, after kit_boot.py has unpacked it: run the gates piece by piece, write signed evidence.

The evidence file is rewritten after every piece; run again with the same file, it goes on where it stopped. Pieces that
ended in an error are tried again, those that passed or failed are not. Exit codes: 0 everything asked for passed,
1 a candidate failed, 2 usage, 4 an error of the machine (run again), 5 the kit or its evidence file is not sound.
"""

import argparse
import fcntl
import json
import lzma
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kgen.contract import Op
from kgen.gates import counters
from kgen.gates import kit_results as results
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.counters import Counters, CounterSet
from kgen.gates.environment import device_arch, environment
from kgen.gates.kit_args import chosen, parse, part_given, words
from kgen.gates.kit_results import EvidenceSet
from kgen.gates.kit_together import Seat, apart, judge
from kgen.gates.kit_units import (
    MODEL,
    RUN,
    TRACE,
    CarriedCandidate,
    Done,
    Ensemble,
    Runner,
    Unit,
    carried_in,
    ensemble,
    part_of,
    piece,
    talking,
    units,
    wants,
)
from kgen.gates.routing import recorded
from kgen.gates.runner.job import spec
from kgen.gates.runner.rank import rank
from kgen.gates.ssh_signatures import SUFFIX, SignatureError
from kgen.gates.ssh_signatures import sign as sign_file
from kgen.gates.statement import beside, statements
from kgen.ops import REGISTRY
from kgen.records import Evidence, RecordError, Status, from_json, to_json
from kgen.store.errors import StoreError
from kgen.store.runs import utc_now
from kgen.store.signing import check, sign

PASSED, FAILED, BAD_USAGE, RETRY, UNSOUND = 0, 1, 2, 4, 5


class Unsound(Exception):
    """The kit or its evidence file cannot be used; one line."""


class NothingToRun(ValueError):
    """What is asked for leaves nothing of a run; one line."""


class Host:
    """A kit at work for one run. `info`: what the table of contents says of it, and the table's hash; `root`: where the
    kit is unpacked."""

    def __init__(
        self, root: Path, info: dict[str, Any], args: argparse.Namespace, arch: str, run: Mapping[str, Runner] = RUN
    ) -> None:
        self.root, self.info, self.args, self.arch, self.run = root, info, args, arch, run
        self.run_id, self.key = str(info["run"]), bytes.fromhex(info["key"])
        self.kit = str(info["kit"])
        self.op: Op = REGISTRY.get(str(info["op"]))
        if self.op.contract_sha256() != info["op_contract"] or info["gate_contract"] != GATE_CONTRACT:
            raise Unsound("the contracts inside this kit are not those it was made for: get the kit again")
        self.candidates = [from_json(CarriedCandidate, c) for c in info["candidates"]]
        self.out, self.raw_path = Path(args.out), Path(args.raw)
        self.linked = root / "cache" / "linked"

    def units(self) -> list[Unit]:
        """The pieces asked for."""
        gates, wanted = words(self.args.gates), words(self.args.points)
        if unknown := [g for g in gates if g not in self.run]:
            raise ValueError(f"no gate {unknown[0]!r}; gates: {', '.join(self.run)}")
        objects = self.root / "objects"
        found = [u for c in self.candidates for u in units(self.op, self._for(c), objects, gates, wanted)]
        if not found:
            text = f"no kernel of {self.op.name} for {self.arch or 'no GPU'} fits --points {self.args.points!r}"
            raise NothingToRun(f"nothing to run: {text}")
        index, count = part_given(self.args.part)
        return found[index - 1 :: count]

    def _for(self, candidate: CarriedCandidate) -> CarriedCandidate:
        """Without the builds for other GPUs."""
        builds, mutants, champions = (
            tuple(b for b in records if b.problem.arch == self.arch)
            for records in (candidate.builds, candidate.mutants, candidate.champions)
        )
        return replace(candidate, builds=builds, mutants=mutants, champions=champions)

    def gates(self) -> int:
        """Run what is not done yet."""
        found, todo = self.resumed(), self.units()
        raw = self._resumed_raw(found)
        for number, unit in enumerate(todo, 1):
            where = f"[{number}/{len(todo)}] {unit.candidate[:12]} {unit.name}"
            finished = found.judged(unit.candidate, unit.name, unit.objects)
            if finished is None and found.failed(unit.candidate):
                say(f"{where}: left out, the candidate has failed")
                continue
            if finished is None:
                started = utc_now()
                say(f"{where} ...")
                done = self._run(unit)
                finished = part_of(self.op, self.run_id, self.arch, self.kit, unit, done, started)
                if done.raw:
                    raw = self._keep_raw({**raw, f"{unit.candidate} {unit.name}": done.raw})
                found = self.keep(found, finished)
            for result in finished.results:
                say(f"{where}: {result.status}  {result.code}  {result.message[:160]}  ({result.seconds:.0f} s)")
        return self._conclude(found, todo)

    def keep(self, found: EvidenceSet, part: Evidence) -> EvidenceSet:
        """Sign one more part and write the file anew, with what another process of this kit wrote meanwhile."""
        with alone(self.out):
            found = self.resumed().and_of(found).with_part(sign(part, self.key))
            stated = beside(self.out)
            stated.unlink(missing_ok=True)  # a kill in between leaves none, and not one of fewer parts
            write(self.out, json.dumps(to_json(found), indent=1, sort_keys=True).encode() + b"\n")
            self._state(found)
            stated.with_name(stated.name + SUFFIX).unlink(missing_ok=True)  # of an earlier statement
        return found

    def _stated(self) -> int:
        """The statement, should a kill have left none, and its signature where one is asked for."""
        if not beside(self.out).exists():
            self._state(self.resumed())
        if self.args.sign:
            try:
                say(f"\nsigned: {sign_file(beside(self.out), Path(self.args.sign).expanduser())}")
            except SignatureError as error:
                return complain(str(error), RETRY)
        return PASSED

    def _state(self, found: EvidenceSet) -> None:
        """The statement of what was found, beside its file."""
        write(beside(self.out), statements(p.evidence for p in found.parts))

    def _keep_raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Raw samples to their file, with those that another process of this kit added meanwhile."""
        with alone(self.raw_path):
            raw = {**self._resumed_raw(self.resumed()), **raw}
            write(self.raw_path, results.pack_raw(raw))
        return raw

    def seat(self) -> Seat | None:
        """This run's candidate for an evaluation together; None without a single one that is due."""
        found = self.resumed()
        due = [u for u in self.units() if u.gate == MODEL and not found.failed(u.candidate)]
        due = [u for u in due if found.judged(u.candidate, u.name, u.objects) is None]
        if len(due) != 1 or apart(self.op):
            return None
        (unit,) = due

        def keep(done: Done, started: str, others: Mapping[str, str]) -> None:
            part = part_of(self.op, self.run_id, self.arch, self.kit, unit, done, started, others)
            self.keep(self.resumed(), part)

        return Seat(self.op, unit, keep)

    def up_to_model(self) -> int:
        """The gates that are asked for before the model gate."""
        asked = words(self.args.gates)
        before = asked[: asked.index(MODEL)] if MODEL in asked else []
        if not before:
            return PASSED
        args = argparse.Namespace(**{**vars(self.args), "gates": ",".join(before)})
        return Host(self.root, self.info, args, self.arch, self.run).gates()

    def _run(self, unit: Unit) -> Done:
        whose = f"{unit.name} of {unit.candidate[:12]}"
        deadline = self.args.deadline
        return piece(unit.gate, whose, deadline, say, lambda: self.run[unit.gate](self.op, unit, self.linked, deadline))

    def resumed(self) -> EvidenceSet:
        """The parts that the evidence file holds already. Raises Unsound for another kit's, or an altered one."""
        if not self.out.exists():
            return EvidenceSet(self.run_id, self.kit)
        try:
            found = from_json(EvidenceSet, json.loads(self.out.read_bytes()))
        except (ValueError, RecordError) as error:
            raise Unsound(f"{self.out} is not evidence of a kit ({error}); choose another --out") from None
        if found.kit != self.kit or not all(check(part, self.key) for part in found.parts):
            raise Unsound(f"{self.out} was not written by this kit, or was altered; choose another --out")
        return found

    def _resumed_raw(self, found: EvidenceSet) -> dict[str, Any]:
        """Raw samples of the parts that are there already."""
        if not found.parts or not self.raw_path.exists():
            return {}
        try:
            return dict(json.loads(lzma.decompress(self.raw_path.read_bytes())))
        except (lzma.LZMAError, ValueError):
            raise Unsound(f"{self.raw_path} is damaged; choose other --out and --raw files") from None

    def _conclude(self, found: EvidenceSet, todo: Sequence[Unit]) -> int:
        mine = results.distinct(p.evidence for p in found.parts)
        say("")
        worst = PASSED
        for candidate in dict.fromkeys(u.candidate for u in todo):
            parts = [p for p in mine if p.candidate == candidate]
            merged = results.merge(parts, "") if parts else None
            for result in merged.results if merged else ():
                say(f"{candidate[:12]}  {result.gate:16} {result.status:6} {result.code}")
                worst = worse(worst, {Status.PASS: PASSED, Status.FAIL: FAILED}.get(result.status, RETRY))
            for point in merged.points if merged else ():
                say(
                    f"  {point.problem:40} n={point.tokens:<3} {point.column:8} {point.candidate_us:8.2f} us"
                    f"  {point.ratio:.3f} ({point.ratio_low:.3f} to {point.ratio_high:.3f}) of {point.best_baseline}"
                    f"  roofline {point.roofline:.0%}  {point.label}"
                )
        if found.parts:
            with alone(self.out):  # another process is for a moment between a file and its statement
                worst = worse(worst, self._stated())
        say(f"\n{len(found.parts)} parts in {self.out}; next: kgen ingest {self.out} where the kit was made")
        return worst

    def plan(self) -> int:
        """Say what would be run."""
        for unit in self.units():
            say(f"{self.op.name} {unit.candidate[:12]} {unit.name}: {len(unit.artefacts)} problems")
        return PASSED

    def rank(self) -> int:
        """Time all kernels for this GPU quickly; prints a table, writes JSON with --out."""
        wanted = words(self.args.points)
        found = [
            (c.id, carried_in(self.root / "objects", b))
            for c in self.candidates
            for b in c.builds
            if b.problem.arch == self.arch and wants(b.problem.key, wanted)
        ]
        if not found:
            raise NothingToRun(f"nothing to rank: no kernel of {self.op.name} fits --points {self.args.points!r}")
        specs = [spec(artefact) for _, artefact in found]
        rows = rank(specs, cache=self.linked, deadline=self.args.deadline)
        table = sorted(zip(found, rows, strict=True), key=lambda line: (line[1].spec.problem.key, line[1].us))
        for (candidate, _), row in table:
            text = (
                f"{row.us:8.2f} us (stock {row.stock_us:.2f})  relL2 {row.rel_l2:.2e}"
                if row.status == "ok"
                else row.message
            )
            say(f"{row.spec.problem.key:40} {candidate[:12]} {row.spec.design:24} {row.status:8} {text}")
        if self.args.out_given:
            body = [{"candidate": c, **to_json(row)} for (c, _), row in table]
            write(
                self.out, json.dumps({"run": self.run_id, "environment": to_json(environment()), "rows": body}).encode()
            )
        return PASSED if all(row.status == "ok" for row in rows) else FAILED

    def counters(self) -> int:
        """Read counters of each candidate; writes them with the reasons of those that were skipped."""
        found: list[Counters] = []
        for candidate in self.candidates:
            pieces = [carried_in(self.root / "objects", b) for b in candidate.builds]
            for build in counters.chosen(self.op, pieces, self.arch):
                found.append(counters.take(build, cache=self.linked, seconds=self.args.deadline))
                each = found[-1]
                said = f"skip: {each.skipped}" if each.skipped else f"{len(each.kernels)} kernels"
                say(f"{each.problem:40} {candidate.id[:12]} counters: {said}")
        if not found:
            raise NothingToRun(f"nothing to count: no kernel of {self.op.name} is for {self.arch or 'no GPU'}")
        write(self.out, json.dumps(to_json(CounterSet(tuple(found))), indent=1, sort_keys=True).encode() + b"\n")
        say(f"\n{self.out}; next: kgen ingest EVIDENCE --counters {self.out} where the kit was made")
        return PASSED


def main(argv: Sequence[str], root: str, info: dict[str, Any]) -> int:
    """Entry from kit_boot.py."""
    args = parse(argv)
    try:
        arch, worst, idle = device_arch(), PASSED, []
        given = info.get("routing")
        trace = recorded(Path(root) / TRACE, given["sha256"]) if given else None
        run = talking(lambda line: say(f"  {line}"), trace)
        hosts = [Host(Path(root), *each, arch, run) for each in chosen(info, args)]
        asked = next((name for name in ("plan", "rank", "counters") if getattr(args, name)), "gates")
        if args.together and asked == "gates":
            together(hosts, args.deadline)
        for host in hosts:
            try:
                worst = worse(worst, getattr(host, asked)())
            except NothingToRun as nothing:
                idle.append(nothing)
        if len(idle) == len(hosts):
            raise idle[0]
        return worst
    except Unsound as error:
        return complain(str(error), UNSOUND)
    except (ValueError, RecordError) as error:
        return complain(str(error), BAD_USAGE)
    except StoreError as error:
        return complain(str(error), RETRY)
    except OSError as error:
        return complain(f"{error.filename or ''}: {error.strerror or error}", RETRY)


def together(hosts: Sequence[Host], deadline: float, run: Ensemble = ensemble) -> None:
    """The model gate once for all runs, after what is asked for before it; what is left, the runs do one by one."""
    seats: list[Seat] = []
    for host in hosts:
        try:
            host.up_to_model()
            seat = host.seat()
        except NothingToRun:
            continue
        if seat is not None and seat.op.name not in {s.op.name for s in seats}:
            seats.append(seat)
    if len(seats) > 1:
        judge(seats, partial(run, say=lambda line: say(f"  {line}")), hosts[0].linked, deadline, say)


def worse(one: int, other: int) -> int:
    """Of two exit codes: that a candidate failed is said before that something has to be run again."""
    return FAILED if FAILED in (one, other) else max(one, other)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time reads and replaces a file: the lock lies beside it, as the file itself is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(path: Path, data: bytes) -> None:
    """Replace a file whole: a kill in between leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    with temp.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temp.replace(path)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str, code: int) -> int:
    sys.stderr.write(f"kgen kit: {text}\n")
    return code
