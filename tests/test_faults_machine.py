"""Any sequence of runs, proofs, promotions, rollbacks, crashes and damage leaves runs and the set as a model says.

Wider than test_promotion_machine.py: kernels come out of run folders, evidence names the kernel that it was measured
against, and a process may die at any step of writing either. Nothing collects old promotions (nothing is ever deleted);
what a crash leaves is swept up. Not covered: real kills and power cuts, which test_faults_durability.py has.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.sets import CURRENT, KEY, OP, TIE, WIN, make_case

from kgen.promotion import Case, Refused, gather, promote, rollback, verify
from kgen.records import canonical_json, sha256_bytes, to_json
from kgen.store import Blobs, Durable, KernelSet, Run, Runs, SetPath, locked, sweep
from kgen.store.documents import json_bytes
from kgen.store.durable import TEMP_PREFIX
from kgen.store.signing import sign

BINS = st.sets(st.sampled_from((1, 8)), min_size=1)
NEVER = 10_000
DIES = st.sampled_from((NEVER,) * 30 + tuple(range(30)))  # the step of writing at which the process dies
MOST = 3  # runs: the same ones meet again and again


class Crash(BaseException):
    """The process stops here."""


def dies(at: int) -> Durable:
    count = itertools.count()

    def step(_: str) -> None:
        if next(count) == at:
            raise Crash

    return Durable(step)


@dataclass
class Tried:
    """A run with one candidate, as far as the model knows it. `against`: what served when it was measured."""

    run: Run
    case: Case
    proven: bool = False
    against: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        return dict(self.case.evidence.evidence.objects)


class World(RuleBasedStateMachine):
    """`stacks`: for each point the promotions that serve it, as (number, object, hash of the evidence), newest last."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.target, self.blobs = SetPath(self.folder / "set"), Blobs(self.folder / "cache")
        self.runs: list[Tried] = []
        self.stacks: dict[str, list[tuple[int, str, str]]] = {}
        self.seq = 0
        self.fresh = itertools.count()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @contextmanager
    def perhaps_dying(self) -> Iterator[None]:
        with suppress(Crash):
            yield

    def serving(self, key: str) -> str:
        return self.stacks[key][-1][1] if self.stacks.get(key) else ""

    @precondition(lambda self: len(self.runs) < MOST)
    @rule(bins=BINS, at=DIES)
    def propose(self, bins: set[int], at: int) -> None:
        ratios = {t: WIN if n == 0 else TIE for n, t in enumerate(sorted(bins))}
        durable, known = dies(at), {r.run.id for r in self.runs}
        with self.perhaps_dying():
            run = Runs(self.folder / "runs", durable).create(OP, "kgen propose", "0")
            run.add(make_case(f"kernel {next(self.fresh)}", ratios).candidate)
        for run in Runs(self.folder / "runs").list():
            if run.id not in known:
                text = run.folders()[0].candidate().source[2:-1] if run.folders() else f"late {next(self.fresh)}"
                case = make_case(text, ratios, key=run.key(), run=run.id)
                with run.lock():  # what a resume does: the candidate is there, or is added now
                    assert run.add(case.candidate).candidate().source == case.candidate.source
                self.runs.append(Tried(run, case))

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, MOST - 1), at=DIES)
    def prove(self, which: int, at: int) -> None:
        """A later proof replaces an earlier one whole, or in part where the process dies: then it is proven again."""
        tried = self.runs[which % len(self.runs)]
        against = {key: self.serving(key) for key in tried.keys if self.serving(key)}
        evidence = replace(tried.case.evidence.evidence, facts={"champions": against})
        case = replace(tried.case, evidence=sign(evidence, tried.run.key()))
        for durable in (dies(at), Durable()):
            with self.perhaps_dying(), Run(tried.run.path, durable).lock():
                self._write(Run(tried.run.path, durable), case)
                break
        tried.case, tried.proven, tried.against = case, True, against

    def _write(self, run: Run, case: Case) -> None:
        (folder,) = run.folders()
        for data in case.objects.values():
            self.blobs.put(data, ".o")
        folder.write("raw.json.xz", case.raw)
        folder.write_builds(case.builds)
        folder.write("evidence.json", json_bytes(case.evidence))
        folder.write_verdict(case.verdict)

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, MOST - 1), at=DIES)
    def promote(self, which: int, at: int) -> None:
        tried = self.runs[which % len(self.runs)]
        wanted, done = self._expected(tried), ""
        with self.perhaps_dying():
            try:
                case = gather(tried.run.folders()[0], self.blobs)
                done = str(promote(self.target, case, CURRENT, tried.run.key(), durable=dies(at)).seq)
            except Refused as refused:
                done = refused.code
            assert done == wanted, (done, wanted)
        if KernelSet(self.target.path).manifest().seq > self.seq:
            self.seq += 1
            assert wanted == str(self.seq)
            for key, sha256 in tried.keys.items():
                self.stacks.setdefault(key, []).append((self.seq, sha256, self._hash(tried)))

    def _hash(self, tried: Tried) -> str:
        return sha256_bytes(canonical_json(to_json(tried.case.evidence)))

    def _expected(self, tried: Tried) -> str:
        """The number that a promotion has, or why there is none."""
        if not tried.proven:
            return "promote.verdict"
        tops = {self.stacks[key][-1] if self.stacks.get(key) else (0, "", "") for key in tried.keys}
        numbers = {seq for seq, _, evidence in tops if evidence == self._hash(tried)}
        if len({seq for seq, _, _ in tops}) == 1 and numbers:
            return str(numbers.pop())
        allowed = {key: {tried.against.get(key, ""), own} for key, own in tried.keys.items()}
        if any(self.serving(key) not in allowed[key] for key in tried.keys):
            return "promote.superseded"
        return str(self.seq + 1)

    @rule(at=DIES)
    def rollback(self, at: int) -> None:
        newest = max((s[-1][0] for s in self.stacks.values() if s), default=0)
        with self.perhaps_dying():
            try:
                assert rollback(self.target, OP, durable=dies(at)).undone.seq == newest
            except Refused as refused:
                assert refused.code == "rollback.none" and not newest
        if KernelSet(self.target.path).manifest().seq > self.seq:
            self.seq += 1
            for stack in self.stacks.values():
                if stack and stack[-1][0] == newest:
                    stack.pop()

    @precondition(lambda self: self.seq)
    @rule(which=st.integers(0, 1 << 16), bit=st.integers(0, 7))
    def damage_and_restore(self, which: int, bit: int) -> None:
        manifest = KernelSet(self.target.path).manifest()
        named = {p.source for p in manifest.promotions} | {p.evidence for p in manifest.promotions} | {"manifest.json"}
        path = self.target.path / sorted(named)[which % len(named)]
        data = path.read_bytes()
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1 << bit]) + data[-1:])
        assert not verify(self.target, CURRENT).ok
        path.write_bytes(data)

    @rule()
    def time_passes(self) -> None:
        """What crashes have left is swept up when it is old, and nothing else."""
        left = [p for p in self.folder.rglob(f"{TEMP_PREFIX}*") if p.parent.name[:1] != "."]
        for path in left:
            os.utime(path, (0, 0))
        for root in (self.target.path, *(r.run.path for r in self.runs)):
            if root.is_dir():
                with locked(root):
                    sweep(root)
        assert not list(self.target.path.rglob(f"{TEMP_PREFIX}*"))

    @invariant()
    def the_set_is_whole_and_points_where_the_model_does(self) -> None:
        assert verify(self.target, CURRENT).ok
        manifest = KernelSet(self.target.path).manifest()
        assert manifest.seq == self.seq == len(manifest.history)
        assert manifest.champions == {k: s[-1][0] for k, s in self.stacks.items() if s}

    @invariant()
    def every_run_can_be_read(self) -> None:
        assert {r.run.id for r in self.runs} == {run.id for run in Runs(self.folder / "runs").list()}
        for tried in self.runs:
            (folder,) = tried.run.folders()
            assert folder.candidate().id == tried.case.candidate.id
            assert (folder.verdict() is not None) == tried.proven
            assert tried.run.info.id == tried.run.id and len(tried.run.key()) == len(KEY)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
