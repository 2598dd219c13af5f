"""A kit at work: pieces of evidence, resuming, parts, failures; the gates themselves are put in by the test."""

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import modeleval
from support.kits import ARCH, CANDIDATE, KEY, OP, RUN, SERVED, Made, ledger_of, make, point

from kgen.contract import Op
from kgen.gates import kit_host, kit_units
from kgen.gates import modeleval as gate
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.counters import CounterSet
from kgen.gates.ingest import Ledger, ingest
from kgen.gates.kit_host import Host, Unsound, main, parse, say
from kgen.gates.kit_results import EvidenceSet, deep_merge
from kgen.gates.kit_units import GATE_NAMES, CarriedCandidate, Done, Runner, Unit, talking
from kgen.ops import REGISTRY
from kgen.records import GateResult, Status, from_json, to_json
from kgen.store.signing import check

BINS = (1, 2, 3, 4, 5, 8)
OTHER = REGISTRY.get("attn_res")


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that the evidence names: there is no GPU here to ask."""
    from support.kits import MACHINE

    monkeypatch.setattr(kit_units, "environment", lambda: MACHINE)


@pytest.fixture
def made(tmp_path: Path) -> list[Made]:
    folder = tmp_path / "kit" / "objects"
    folder.mkdir(parents=True)
    return [make(folder, t, d) for d in (SERVED, "nano") for t in BINS]


@pytest.fixture
def info(made: list[Made]) -> dict[str, Any]:
    return {
        "kit": "f" * 64,
        "run": RUN,
        "key": KEY.hex(),
        "op": OP.name,
        "op_contract": OP.contract_sha256(),
        "gate_contract": GATE_CONTRACT,
        "candidates": [to_json(CarriedCandidate(CANDIDATE, tuple(m.record for m in made), ()))],
    }


@pytest.fixture
def ledger(made: list[Made]) -> Ledger:
    return ledger_of([m.record for m in made])


class Gates:
    """Deterministic gates that write down what they were asked; `verdicts` maps a unit's name to its status."""

    def __init__(self, verdicts: Mapping[str, Status] | None = None, stop: str = "") -> None:
        self.asked: list[str] = []
        self.verdicts, self.stop = verdicts or {}, stop

    def table(self) -> dict[str, Runner]:
        return {gate: self.runner(gate) for gate in GATE_NAMES}

    def runner(self, gate: str) -> Runner:
        def run(op: object, unit: Unit, cache: Path, deadline: float) -> Done:
            if unit.name == self.stop:
                raise KeyboardInterrupt
            self.asked.append(unit.name)
            status = self.verdicts.get(unit.name, Status.PASS)
            result = GateResult(GATE_NAMES[gate], status, f"{gate}.{status}", "so it is", {"n": 1}, 1.0, GATE_CONTRACT)
            timed = gate == "perf" and status is Status.PASS
            points = tuple(point(a.record) for a in unit.artefacts) if timed else ()
            return Done(result, points, {"samples": [1.0, unit.name]} if timed else None)

        return run


@pytest.fixture
def run(tmp_path: Path, info: dict[str, Any]) -> Callable[..., tuple[int, Path]]:
    def go(gates: Gates, *args: str, name: str = "e") -> tuple[int, Path]:
        out = tmp_path / f"{name}.json"
        parsed = parse(["--out", str(out), "--raw", str(tmp_path / f"{name}.xz"), *args])
        return Host(tmp_path / "kit", info, parsed, ARCH, gates.table()).gates(), out

    return go


UNITS = [
    f"unit-numeric {ARCH} {SERVED} t1-t4",
    f"unit-numeric {ARCH} {SERVED} t5-t8",
    f"unit-numeric {ARCH} nano t1-t4",
    f"unit-numeric {ARCH} nano t5-t8",
    "full-model-eval",
    f"perf-sweep {ARCH} {SERVED} t1-t4",
    f"perf-sweep {ARCH} {SERVED} t5-t8",
]


def test_a_whole_run_is_ingested_as_promotable(run: Any, ledger: Ledger, capsys: Any) -> None:
    gates = Gates()
    code, out = run(gates)
    assert code == 0 and gates.asked == UNITS
    (got,) = ingest({"e": out.read_bytes()}, {"r": out.with_suffix(".xz").read_bytes()}, ledger)
    assert got.passed and len(got.evidence.evidence.points) == len(BINS)
    assert got.evidence.evidence.facts["parts"] == UNITS
    said = capsys.readouterr().out
    assert "perf-sweep       pass" in said and "next: kgen ingest" in said


def test_a_killed_run_goes_on_where_it_stopped(run: Any, ledger: Ledger) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Gates(stop=UNITS[5]))
    gates = Gates()
    code, out = run(gates)
    assert code == 0 and gates.asked == UNITS[5:]
    assert ingest({"e": out.read_bytes()}, {"r": out.with_suffix(".xz").read_bytes()}, ledger)[0].passed


def test_parts_on_different_files_are_ingested_together(run: Any, ledger: Ledger) -> None:
    files = [run(Gates(), "--part", f"{i}/3", name=f"part{i}")[1] for i in (1, 2, 3)]
    documents = {str(f): f.read_bytes() for f in files}
    raws = {str(f): f.with_suffix(".xz").read_bytes() for f in files if f.with_suffix(".xz").exists()}
    (got,) = ingest(documents, raws, ledger)
    assert got.passed and sorted(got.evidence.evidence.facts["parts"]) == sorted(UNITS)


def test_two_that_write_to_one_file_lose_nothing_of_each_other(run: Any, ledger: Ledger) -> None:
    class Meanwhile(Gates):
        """While the model gate runs, somebody on another GPU does the rest with the same files."""

        def runner(self, gate: str) -> Runner:
            own = super().runner(gate)

            def go(op: object, unit: Unit, cache: Path, deadline: float) -> Done:
                if gate == "model":
                    assert run(Gates(), "--gates", "numeric,perf")[0] == 0
                return own(op, unit, cache, deadline)  # type: ignore[arg-type]

            return go

    code, out = run(Meanwhile(), "--gates", "model")
    assert code == 0
    (got,) = ingest({"e": out.read_bytes()}, {"r": out.with_suffix(".xz").read_bytes()}, ledger)
    assert got.passed and sorted(got.evidence.evidence.facts["parts"]) == sorted(UNITS)


def test_parts_that_are_written_at_the_same_moment_are_all_kept(run: Any, ledger: Ledger) -> None:
    with ThreadPoolExecutor(4) as pool:
        ended = [f.result() for f in [pool.submit(run, Gates(), "--part", f"{i}/4") for i in (1, 2, 3, 4)]]
    assert {code for code, _ in ended} == {0}
    out = ended[0][1]
    (got,) = ingest({"e": out.read_bytes()}, {"r": out.with_suffix(".xz").read_bytes()}, ledger)
    assert got.passed and len(got.evidence.evidence.points) == len(BINS)


def test_a_failed_candidate_is_not_tried_further_nor_again(run: Any, ledger: Ledger) -> None:
    gates = Gates({UNITS[1]: Status.FAIL})
    code, out = run(gates)
    assert code == 1 and gates.asked == UNITS[:2]
    again = Gates()
    assert run(again)[0] == 1 and again.asked == []
    assert not ingest({"e": out.read_bytes()}, {}, ledger)[0].passed


def test_an_error_is_retried_by_the_next_run(run: Any) -> None:
    assert run(Gates({UNITS[0]: Status.ERROR}))[0] == 4
    gates = Gates()
    assert run(gates)[0] == 0 and gates.asked == UNITS[:1]


def test_a_gate_that_breaks_is_an_error_of_its_piece_only(info: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    def broken(*_: object) -> Done:
        raise RuntimeError("out of\nmemory")

    gates = Gates()
    args = parse(["--out", str(tmp_path / "x.json"), "--raw", str(tmp_path / "x.xz")])
    assert Host(tmp_path / "kit", info, args, ARCH, {**gates.table(), "model": broken}).gates() == 4
    assert gates.asked == [u for u in UNITS if u != "full-model-eval"]
    assert "RuntimeError: out of memory" in capsys.readouterr().out


def test_the_model_gate_of_a_kit_leaves_evidence_that_says_what_it_measured(
    info: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    builds = tuple(modeleval.stand("reordered", tokens).record for tokens in (4, 8))
    mutants = tuple(modeleval.stand(m, 8, m).record for m in modeleval.MUTANTS)
    info = {**info, "candidates": [to_json(CarriedCandidate(CANDIDATE, builds, mutants))]}

    def model(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
        return Done(
            gate.run(
                op, unit.artefacts, unit.mutants, cache=cache, deadline=deadline, device="cpu", say=say,
                to_spec=modeleval.to_spec, running=modeleval.in_process, sizes=modeleval.only(tasks=(20, 4)),
                checkpoint=modeleval.chain_checkpoint(), mark=modeleval.chain_mark,
            )
        )  # fmt: skip

    out = tmp_path / "model.json"
    args = parse(["--gates", "model", "--out", str(out), "--raw", str(tmp_path / "r.xz")])
    assert Host(tmp_path / "kit", info, args, ARCH, {**Gates().table(), "model": model}).gates() == 0
    (part,) = from_json(EvidenceSet, json.loads(out.read_text())).parts
    assert check(part, KEY) and part.evidence.objects == {b.problem.key: b.object_sha256 for b in builds}
    (result,) = part.evidence.results
    assert (result.gate, result.code) == ("full-model-eval", "fullmodel.pass"), result.message
    assert set(part.evidence.seeds) == {"weights", "tokens", "draws"}
    assert {"judge", "stock nano", "candidate nano-random"} <= set(result.evidence["seconds"])
    assert "candidate nano-random: " in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_gates_of_a_kit_skip_without_a_gpu(made: list[Made], tmp_path: Path) -> None:
    said: list[str] = []
    for short, runner in talking(said.append).items():
        done = runner(OP, Unit(short, short, CANDIDATE, tuple(made)), tmp_path, 10.0)  # type: ignore[arg-type]
        assert done.result.gate == GATE_NAMES[short] and done.result.code.endswith(".no_gpu")
    assert set(talking(said.append)) == set(GATE_NAMES) and not said


@pytest.mark.parametrize(
    ("args", "want"),
    [
        (["--points", "nano"], [UNITS[2], UNITS[3], "full-model-eval"]),
        (["--points", "t8", "--gates", "perf"], [f"perf-sweep {ARCH} {SERVED} t8"]),
        (
            ["--gates", "model,numeric", "--points", f"moe_shared/nano/t1/{ARCH}"],
            ["full-model-eval", f"unit-numeric {ARCH} nano t1"],
        ),
    ],
)
def test_gates_and_points_can_be_chosen(run: Any, args: list[str], want: list[str]) -> None:
    gates = Gates()
    assert run(gates, *args)[0] == 0
    assert gates.asked == want


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--gates", "speed"], "no gate 'speed'"),
        (["--points", "t99"], "no kernel of moe_shared for sm_90a fits --points 't99'"),
        (["--part", "3/2"], "--part '3/2' is not I/N"),
        (["--part", "x"], "--part 'x' is not I/N"),
    ],
)
def test_bad_options_are_one_clear_line(run: Any, args: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        run(Gates(), *args)


@pytest.mark.parametrize("damage", ["not json", "other", "edited"])
def test_an_evidence_file_that_is_not_this_kits_is_left_alone(run: Any, tmp_path: Path, damage: str) -> None:
    _, out = run(Gates(), "--gates", "numeric")
    text = out.read_text()
    bad = {"not json": "hello", "other": text.replace('"kit": "', '"kit": "0'), "edited": text.replace("H200", "H300")}
    out.write_text(bad[damage])
    with pytest.raises(Unsound):
        run(Gates())
    assert out.read_text() == bad[damage]


def test_a_kit_with_other_contracts_than_its_code_is_unsound(info: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    assert main(["--plan"], "", {**info, "runs": [{**info, "op_contract": "0" * 64}]}) == 5
    assert capsys.readouterr().err.count("\n") == 1


def test_on_a_machine_whose_gpu_fits_nothing_there_is_nothing_to_run(info: dict[str, Any], tmp_path: Path) -> None:
    host = Host(tmp_path, info, parse([]), "sm_100a")
    with pytest.raises(ValueError, match="no kernel of moe_shared for sm_100a"):
        host.units()


@pytest.fixture
def several(info: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A table of contents of two runs: of OP, and of another op that is built for two tokens of nano."""
    objects = tmp_path / "kit" / "objects"
    record = replace(make(objects, 2, "nano").record, problem=OTHER.problem("nano", 2, ARCH))
    other = {
        "run": "20300101T000000Z-other-000000",
        "key": "ab" * 32,
        "op": OTHER.name,
        "op_contract": OTHER.contract_sha256(),
        "candidates": [to_json(CarriedCandidate(CANDIDATE, (record,), ()))],
    }
    monkeypatch.setattr(kit_host, "device_arch", lambda: ARCH)
    return {"gate_contract": GATE_CONTRACT, "runs": [info, other]}


def planned(kit: dict[str, Any], capsys: Any, *args: str) -> tuple[int, list[str], str]:
    code = main(["--plan", *args], "", kit)
    said = capsys.readouterr()
    return code, [line.split()[0] for line in said.out.splitlines()], said.err


def test_a_kit_of_several_runs_does_each_of_them(several: dict[str, Any], capsys: Any) -> None:
    code, ops, _ = planned(several, capsys)
    assert (code, ops) == (0, [OP.name] * len(UNITS) + [OTHER.name] * 2)


@pytest.mark.parametrize(("args", "op"), [(("--ops", OTHER.name), OTHER), (("--points", SERVED), OP)])
def test_a_part_of_the_runs_of_a_kit_can_be_chosen(
    args: tuple[str, ...], op: Op, several: dict[str, Any], capsys: Any
) -> None:
    code, ops, _ = planned(several, capsys, *args)
    assert code == 0 and set(ops) == {op.name}


@pytest.mark.parametrize(
    ("args", "line"),
    [(("--ops", "nothing"), "no run of 'nothing' in this kit; it has"), (("--points", "t999"), "nothing to run: ")],
)
def test_what_no_run_of_a_kit_has_is_one_line(
    args: tuple[str, ...], line: str, several: dict[str, Any], capsys: Any
) -> None:
    code, ops, error = planned(several, capsys, *args)
    assert code == 2 and not ops and error.startswith(f"kgen kit: {line}") and error.count("\n") == 1


def test_each_run_of_a_kit_has_evidence_and_raw_samples_of_its_own(several: dict[str, Any], tmp_path: Path) -> None:
    args = parse(["--out", str(tmp_path / "evidence.json"), "--raw", str(tmp_path / "raw.json.xz")])
    hosts = [Host(tmp_path / "kit", *each, ARCH, Gates().table()) for each in kit_host.chosen(several, args)]
    runs = [line["run"] for line in several["runs"]]
    assert [h.out.name for h in hosts] == [f"evidence.{run}.json" for run in runs]
    assert [h.raw_path.name for h in hosts] == [f"raw.{run}.json.xz" for run in runs]
    assert len({h.kit for h in hosts}) == 1
    for host, run in zip(hosts, runs, strict=True):
        assert host.gates() == 0
        assert {p["evidence"]["run"] for p in json.loads(host.out.read_text())["parts"]} == {run}


def test_counters_are_written_with_the_reason_of_a_skip_and_are_no_evidence(
    info: dict[str, Any], tmp_path: Path
) -> None:
    host = Host(tmp_path / "kit", info, parse(["--counters", "--out", str(tmp_path / "counters.json")]), ARCH)
    assert host.counters() == 0
    found = from_json(CounterSet, json.loads((tmp_path / "counters.json").read_text())).counters
    assert [c.problem.split("/")[1:3] for c in found] == [[SERVED, "t1"], [SERVED, "t8"]]
    assert all(c.candidate == CANDIDATE and c.skipped and not c.kernels for c in found)
    assert parse(["--counters"]).out == "counters.json" and parse([]).out == "evidence.json"
    with pytest.raises(kit_host.NothingToRun, match="nothing to count"):
        Host(tmp_path / "kit", info, parse(["--counters"]), "sm_100a").counters()


def test_a_failure_is_said_before_that_something_has_to_be_run_again() -> None:
    assert [kit_host.worse(a, b) for a, b in ((0, 4), (4, 1), (1, 4), (0, 0), (0, 1))] == [4, 1, 1, 0, 1]


def test_merging_adds_numbers_joins_lists_and_keeps_words() -> None:
    a = {"n": 1, "rows": [1, 2], "by": {"x": 1}, "word": "a", "flag": True}
    b = {"n": 2, "rows": [2, 3], "by": {"y": 2}, "word": "b", "flag": True}
    assert deep_merge(a, b) == {"n": 3, "rows": [1, 2, 3], "by": {"x": 1, "y": 2}, "word": "a", "flag": True}
