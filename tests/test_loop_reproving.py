"""What `kgen verify` judges again on a GPU: which pieces, once each, taken up again, and what is left of a claim."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from support import kits
from support.sets import ARCH, CONTRACT, WIN, fill, make_case

from kgen.cli import app, boundary
from kgen.contract import Op
from kgen.gates import numeric
from kgen.gates.contract import DEFECTS
from kgen.gates.kit_units import Done, Runner, Unit
from kgen.gates.runner.job import stock_spec
from kgen.gates.sandbox import NoSandboxError, choose
from kgen.loop import again
from kgen.loop.reproving import Judges, Reproved, built_beside, reprove
from kgen.ops import REGISTRY
from kgen.promotion import Current, Finding, Outcome
from kgen.records import BuildRecord, Candidate, GateResult, Origin, PerfPoint, Status
from kgen.records.envelope import label
from kgen.store.cache import OBJECT_SUFFIX, objects_in
from kgen.store.paths import SetPath

SOURCE = (Path(__file__).parents[1] / "docs" / "examples" / "moe_shared.py").read_text()
DIMS = "k3-tp8"
OPS = ("moe_shared", "kda_core", "moe_router")
CURRENT = Current(dict.fromkeys(OPS, CONTRACT), 1)
BINS = (1, 2, 8, 64)


def promoted(root: Path, *ops: str, bins: Sequence[int] = BINS, text: str = "one") -> SetPath:
    cases = [
        make_case(f"{text} {op}", dict.fromkeys(bins, WIN), op=op, dims=DIMS, run=f"20260101T000000Z-{op}-abc123")
        for op in ops
    ]
    return fill(root, *cases, current=CURRENT)


def timed(key: str, tokens: int, low: float, high: float, column: str = "graph") -> PerfPoint:
    middle = (low + high) / 2
    return PerfPoint(
        key, tokens, column, "events", 10.0, {"stock": 10.0}, "stock", middle, low, high, 0.5, 5.0, 40, label(high)
    )


@dataclass
class Bench:
    """Gates that note what they were asked, and answer as they are told."""

    asked: list[str] = field(default_factory=list)
    status: dict[str, Status] = field(default_factory=dict)  # by op or "model"
    ratio: dict[int, tuple[float, float]] = field(default_factory=dict)  # by tokens: interval of the new times

    def _done(self, name: str, who: str, points: tuple[PerfPoint, ...] = ()) -> Done:
        status = self.status.get(who, Status.PASS)
        return Done(GateResult(name, status, f"{who}.{status.value}", "as told"), points)

    def _words(self, unit: Unit) -> str:
        return ",".join(map(str, sorted(a.record.problem.tokens for a in unit.artefacts)))

    def whole(self, gate: Runner) -> Runner:
        def run(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
            self.asked.append("whole")
            return gate(op, unit, cache, deadline)

        return run

    def numeric(self, op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
        self.asked.append(f"numeric {op.name} {self._words(unit)}")
        return self._done("unit-numeric", op.name)

    def perf(self, op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
        self.asked.append(f"perf {op.name} {self._words(unit)}")
        problems = [a.record.problem for a in unit.artefacts]
        points = (timed(p.key, p.tokens, *self.ratio.get(p.tokens, (0.85, 0.9))) for p in problems)
        return self._done("perf-sweep", f"perf-{op.name}", tuple(points))

    def model(self, ops: Sequence[Op], made: Sequence[Unit], cache: Path, deadline: float, say: object) -> Done:
        self.asked.append(f"model {','.join(op.name for op in ops)} mutants {sum(len(u.mutants) for u in made)}")
        return self._done("full-model-eval", "model")

    def beside(
        self, op: Op, candidate: Candidate, builds: tuple[BuildRecord, ...], cache: Path, brief: bool
    ) -> tuple[tuple[BuildRecord, ...], tuple[BuildRecord, ...]]:
        return (), tuple(dataclasses.replace(builds[0], defect=d) for d in DEFECTS[: 1 if brief else 2])

    @property
    def judges(self) -> Judges:
        full = (self.whole(self.numeric), self.whole(self.perf))
        return Judges(full[0], self.numeric, full[1], self.perf, self.model, self.beside)


def run(place: SetPath, cache: Path, bench: Bench, full: bool = False, seconds: float = 1e9) -> Reproved:
    return reprove(
        place, REGISTRY, cache, lambda line: None, full=full, seconds=seconds, arch=ARCH, judges=bench.judges
    )


def of(got: Reproved, outcome: Outcome) -> list[Finding]:
    return [f for f in got.findings if f.outcome is outcome]


def test_all_judges_every_number_the_whole_set_in_one_model_and_three_bins(tmp_path: Path) -> None:
    bench = Bench()
    got = run(promoted(tmp_path / "set", *OPS), tmp_path / "cache", bench)
    assert bench.asked == [
        *(f"numeric {op} 1,2,8,64" for op in OPS),
        "model moe_shared,kda_core mutants 2",
        "model moe_router mutants 1",  # the others are measured with given experts
        *(f"perf {op} 1,8,64" for op in OPS),
    ]
    assert not got.left and {f.outcome for f in got.findings} == {Outcome.OK}
    assert [f.check for f in got.findings if f.subject == "the whole set"] == ["full-model-eval (moe_shared, kda_core)"]
    assert [f.message for f in got.findings if f.check == "labels"] == ["3 timed points hold: 3 win, 0 tie"] * 3


def test_full_judges_each_kernel_alone_at_all_its_points_in_pieces(tmp_path: Path) -> None:
    bench, bins = Bench(), (1, 2, 3, 4, 5, 64)
    run(promoted(tmp_path / "set", "moe_shared", "kda_core", bins=bins), tmp_path / "cache", bench, full=True)
    cut = ("1,2,3,4", "5,64")
    assert bench.asked.count("whole") == 8  # the gates with everything that they have
    assert [a for a in bench.asked if a != "whole"] == [
        *(f"numeric {op} {part}" for op in OPS[:2] for part in cut),
        "model moe_shared mutants 2",
        "model kda_core mutants 2",
        *(f"perf {op} {part}" for op in OPS[:2] for part in cut),
    ]


def test_only_what_serves_is_judged(tmp_path: Path) -> None:
    place = promoted(tmp_path / "set", "moe_shared")
    promoted(place.path, "moe_shared", bins=(8,), text="two")
    bench = Bench()
    run(place, tmp_path / "cache", bench)
    assert bench.asked[:2] == ["numeric moe_shared 1,2,64", "numeric moe_shared 8"]
    model = "model moe_shared mutants 1"  # of each alone: two candidates of one op have one seat
    assert bench.asked[2:] == [model, model, "perf moe_shared 1,64", "perf moe_shared 8"]


def test_a_run_that_had_no_time_left_is_taken_up_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    place, cache, bench = promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache", Bench()
    first = run(place, cache, bench, seconds=0)
    assert bench.asked == ["numeric moe_shared 1,2,8,64"]
    assert len(first.left) == 2 and [f.message for f in of(first, Outcome.SKIP)] == ["no time was left for it"] * 2
    second = run(place, cache, bench, seconds=0)
    assert len(second.left) == 1 and len(bench.asked) == 2
    third = run(place, cache, bench, seconds=0)
    assert not third.left and len(bench.asked) == 3 and not of(third, Outcome.SKIP)
    assert [f.check for f in third.findings][-1] == "labels"
    run(place, cache, bench)
    assert bench.asked[3:] == bench.asked[:3]


def test_what_was_found_of_another_set_or_kind_of_run_is_not_taken_up(tmp_path: Path) -> None:
    place, cache, bench = promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache", Bench()
    run(place, cache, bench, seconds=0)
    run(place, cache, bench, full=True, seconds=0)
    promoted(place.path, "kda_core")
    run(place, cache, bench, seconds=0)
    assert [a for a in bench.asked if a != "whole"] == ["numeric moe_shared 1,2,8,64"] * 3


def test_a_damaged_file_of_parts_is_begun_anew(tmp_path: Path) -> None:
    place, cache, bench = promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache", Bench()
    run(place, cache, bench, seconds=0)
    (kept,) = (cache / "verify").iterdir()
    kept.write_text("{")
    run(place, cache, bench, seconds=0)
    assert bench.asked == ["numeric moe_shared 1,2,8,64"] * 2


def test_an_error_is_said_and_tried_again_and_what_passed_is_not(tmp_path: Path) -> None:
    place, cache = promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache"
    bench = Bench(status={"model": Status.ERROR})
    got = run(place, cache, bench)
    assert [f.message for f in of(got, Outcome.SKIP)] == ["model.error: as told"]
    assert len(got.failed) == 1 and got.failed[0].endswith("full-model-eval") and not got.left
    again = Bench()
    assert not of(run(place, cache, again), Outcome.SKIP)
    assert again.asked == ["model moe_shared mutants 1"]


@pytest.mark.parametrize(("hours", "again"), [(23, False), (25, True), (-1, True)])
def test_what_was_measured_longer_than_a_day_ago_or_in_the_future_is_measured_again(
    tmp_path: Path, hours: int, again: bool
) -> None:
    place, cache = promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache"
    run(place, cache, Bench(status={"model": Status.ERROR}))  # an error that stays keeps the parts
    (kept,) = (cache / "verify").iterdir()
    found = json.loads(kept.read_bytes())
    then = (datetime.now(UTC) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
    found["parts"] = [{**part, "finished": then} for part in found["parts"]]
    kept.write_text(json.dumps(found))
    bench = Bench(status={"model": Status.ERROR})
    run(place, cache, bench)
    assert (len(bench.asked) == 3) is again


@pytest.mark.parametrize("status", [Status.FAIL, Status.ERROR])
def test_times_of_a_sweep_that_did_not_pass_hold_nothing(tmp_path: Path, status: Status) -> None:
    bench = Bench(status={"perf-moe_shared": status})
    got = run(promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache", bench)
    assert not [f for f in got.findings if f.check == "labels"]


@pytest.mark.parametrize("who", ["moe_shared", "model", "perf-moe_shared"])
def test_a_gate_that_fails_is_bad(tmp_path: Path, who: str) -> None:
    got = run(promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache", Bench(status={who: Status.FAIL}))
    assert [f.message for f in of(got, Outcome.BAD)] == [f"{who}.fail: as told"]


def test_new_times_say_which_points_hold_which_do_not_and_which_are_open(tmp_path: Path) -> None:
    bench = Bench(ratio={1: (0.97, 1.02), 8: (1.031, 1.2), 64: (1.01, 1.04)})
    got = run(promoted(tmp_path / "set", "moe_shared"), tmp_path / "cache", bench)
    ((gone,), (open_,)) = of(got, Outcome.BAD), of(got, Outcome.SKIP)
    assert gone.check == f"moe_shared/{DIMS}/t8/{ARCH}" and open_.check == f"moe_shared/{DIMS}/t64/{ARCH}"
    assert "promoted as win, now 1.115 (1.031 to 1.200) of stock at 8 tokens: it does not hold" in gone.message
    assert "neither shown nor refuted" in open_.message
    assert [f.message for f in got.findings if f.check == "labels"] == ["1 timed points hold: 0 win, 1 tie"]


def test_on_another_gpu_and_without_one_nothing_is_judged_and_it_says_why(tmp_path: Path) -> None:
    place, bench = promoted(tmp_path / "set", "moe_shared"), Bench()
    for here, said in (("", "no GPU here"), ("sm_100a", "this GPU is sm_100a")):
        got = reprove(place, REGISTRY, tmp_path / "cache", lambda line: None, arch=here, judges=bench.judges)
        assert [(f.subject, f.outcome) for f in got.findings] == [("gates", Outcome.SKIP)]
        assert said in got.findings[0].message
    assert not bench.asked


def on_cpu(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
    specs = [stock_spec(a.record.problem) for a in unit.artefacts]
    return Done(numeric.run_specs(op, specs, cache=cache, device="cpu", sanitize=False, deadline=deadline))


def test_the_numeric_gate_itself_judges_a_set_with_stock_in_the_kernels_place(tmp_path: Path) -> None:
    place = fill(tmp_path / "set", make_case("one", {4: WIN}, dims="nano"), current=CURRENT)
    bench = Bench()
    judges = dataclasses.replace(bench.judges, quick_numeric=on_cpu)
    got = reprove(place, REGISTRY, tmp_path / "cache", lambda line: None, arch=ARCH, judges=judges)
    assert [f.message.split(":")[0] for f in got.findings] == ["numeric.pass", "model.pass"]
    assert bench.asked == ["model moe_shared mutants 1"]  # and no times: these dims are not served


@pytest.mark.parametrize("option", ["--all", "--full"])
def test_the_command_insists_on_a_gpu_where_it_is_asked_to(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    asked = ["verify", "--no-rebuild", "--set", "builtin", "--json"]
    assert boundary.run(app.build(), asked) == boundary.OK
    assert json.loads(capsys.readouterr().out)["left"] == 0
    assert boundary.run(app.build(), [*asked, option]) == boundary.ENVIRONMENT
    said = capsys.readouterr()
    assert json.loads(said.out)["ok"] is True and "takes a GPU" in said.err


def test_beside_torch_alone_the_set_is_checked_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    out = tmp_path / "verified.json"
    asked = ["--cache", str(tmp_path / "cache"), "--out", str(out), "--set"]
    assert again.main([*asked, "builtin"]) == again.NO_GPU
    found = json.loads(out.read_text())["findings"]
    assert {f["check"] for f in found} > {"evidence", "objects", "gates"} and "no GPU here" in capsys.readouterr().err
    place = promoted(tmp_path / "set", "moe_shared")
    next((place.path / "objects").iterdir()).write_bytes(b"x")
    assert again.main([*asked, str(place.path)]) == again.BAD
    assert again.main([*asked, str(tmp_path / "none")]) == again.USAGE


def test_the_small_model_and_the_mutants_are_built_from_the_promoted_source(tmp_path: Path) -> None:
    try:
        choose()
    except NoSandboxError as error:
        pytest.skip(str(error))
    made = kits.make(tmp_path, 1).record
    candidate = Candidate(kits.OP.name, SOURCE, Origin("promoted"))
    small, mutants = built_beside(kits.OP, candidate, (made,), tmp_path / "cache")
    assert [b.problem for b in small] == [dataclasses.replace(made.problem, dims=kits.OP.pack.small)]
    both = (made.problem, small[0].problem)
    assert [(b.problem, b.defect) for b in mutants] == [(problem, defect) for defect in DEFECTS for problem in both]
    blobs = objects_in(tmp_path / "cache")
    assert all(blobs.find(b.object_sha256, OBJECT_SUFFIX) for b in (*small, *mutants))


def test_the_command_says_that_pieces_ended_in_an_error_and_does_not_call_that_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kgen.loop import reproving

    place = promoted(tmp_path / "set", "moe_shared")
    bench = Bench(status={"model": Status.ERROR})

    def reproved(*_: object, **__: object) -> Reproved:
        return run(place, tmp_path / "cache", bench)

    monkeypatch.setattr(reproving, "reprove", reproved)
    arguments = ["verify", "--all", "--no-rebuild", "--set", str(place.path), "--cache", str(tmp_path / "cache")]
    assert boundary.run(app.build(), arguments) == 4
    assert "1 pieces ended in an error; the same command goes on with them" in capsys.readouterr().err
    bench.status = {}
    assert boundary.run(app.build(), arguments) == 0
