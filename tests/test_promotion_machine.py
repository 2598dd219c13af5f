"""Any sequence of promotions, rollbacks, crashes and repairs keeps the set whole and the pointers right."""

import itertools
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.sets import CURRENT, KEY, OP, TIE, WIN, make_case, problem

from kgen.promotion import Refused, promote, rollback, verify
from kgen.records import Manifest
from kgen.store import Durable, IntegrityError, KernelSet, SetPath

ARCHS = ("sm_90a", "sm_103a")
BINS = (1, 8, 64)


class Crash(BaseException):
    """The process stops here."""


class Promotions(RuleBasedStateMachine):
    """The model: for each point a stack of promotion numbers, of which the topmost serves."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.target = SetPath(self.folder / "set")
        self.stacks: dict[str, list[int]] = {}
        self.seq = 0
        self.fresh = itertools.count()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def manifest(self) -> Manifest:
        return KernelSet(self.target.path).manifest()

    def newest(self, arch: str) -> int:
        return max((s[-1] for k, s in self.stacks.items() if s and k.endswith(arch)), default=0)

    @rule(bins=st.sets(st.sampled_from(BINS), min_size=1), arch=st.sampled_from(ARCHS))
    def promote(self, bins: set[int], arch: str) -> None:
        ratios = {t: WIN if i == 0 else TIE for i, t in enumerate(sorted(bins))}
        case = make_case(f"kernel {next(self.fresh)}", ratios, arch=arch)
        self.seq += 1
        assert promote(self.target, case, CURRENT, KEY).seq == self.seq
        for tokens in bins:
            self.stacks.setdefault(problem(tokens, arch=arch).key, []).append(self.seq)

    @rule(arch=st.sampled_from(ARCHS))
    def promote_the_same_again(self, arch: str) -> None:
        """One source whose evidence never changes: promoted anew only when it does not serve already."""
        key = problem(1, arch=arch).key
        seq = promote(self.target, make_case("constant", {1: WIN}, arch=arch), CURRENT, KEY).seq
        if seq > self.seq:
            self.seq = seq
            self.stacks.setdefault(key, []).append(seq)
        assert self.stacks[key][-1] == seq

    @rule(arch=st.sampled_from(ARCHS))
    def rollback(self, arch: str) -> None:
        newest = self.newest(arch)
        if not newest:
            try:
                rollback(self.target, OP, arch)
            except Refused:
                return
            raise AssertionError("there was nothing to roll back")
        done = rollback(self.target, OP, arch)
        self.seq += 1
        assert (done.seq, done.undone.seq) == (self.seq, newest)
        for stack in self.stacks.values():
            if stack and stack[-1] == newest:
                stack.pop()

    @rule(at=st.integers(0, 35))
    def crash_while_promoting(self, at: int) -> None:
        count = itertools.count()

        def step(_: str) -> None:
            if next(count) == at:
                raise Crash

        case = make_case(f"crashed {next(self.fresh)}", {8: WIN})
        before = self.seq
        with suppress(Crash):
            promote(self.target, case, CURRENT, KEY, durable=Durable(step))
        seq = self.manifest().seq
        assert seq in (before, before + 1)
        if seq > before:
            self.seq = seq
            self.stacks.setdefault(problem(8).key, []).append(seq)

    @precondition(lambda self: self.seq)
    @rule(bit=st.integers(0, 1 << 24))
    def damage_and_restore(self, bit: int) -> None:
        files = sorted(p for p in self.target.path.rglob("*") if p.is_file() and p.name != ".lock")
        named = {f"{s}.o.xz" for p in self.manifest().promotions for s in p.objects.values()}
        named |= {Path(n).name for p in self.manifest().promotions for n in (p.source, p.evidence, p.builds, p.raw)}
        path = [p for p in files if p.name in named or p.name == "manifest.json"][bit % 7 % len(named)]
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ (1 << bit % 8)]) + data[1:])
        assert not verify(self.target, CURRENT).ok
        if path.name == "manifest.json":
            try:
                rollback(self.target, OP)
            except IntegrityError:
                pass
            else:
                raise AssertionError("a damaged manifest was written to")
        path.write_bytes(data)

    @invariant()
    def set_is_whole_and_points_where_the_model_does(self) -> None:
        assert verify(self.target, CURRENT).ok
        manifest = self.manifest()
        assert manifest.seq == self.seq
        assert manifest.champions == {k: s[-1] for k, s in self.stacks.items() if s}
        assert [line["seq"] for line in manifest.history] == [str(n + 1) for n in range(self.seq)]


TestPromotions = Promotions.TestCase
TestPromotions.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
