"""The model gate once for the kernels of several runs; the gates themselves are put in by the test."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.kits import ARCH, KEY, OP, SERVED, make, point

from kgen.contract import Op
from kgen.gates import kit_host, kit_units
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.kit_args import parse
from kgen.gates.kit_host import Host, together
from kgen.gates.kit_results import EvidenceSet, unit_of
from kgen.gates.kit_units import GATE_NAMES, CarriedCandidate, Done, Runner, Unit
from kgen.ops import REGISTRY
from kgen.records import GateResult, Status, from_json, to_json
from kgen.store.signing import check

OPS = (OP, REGISTRY.get("attn_res"), REGISTRY.get("kda_core"))
ROUTER = REGISTRY.get("moe_router")
MODEL = "full-model-eval"


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.kits import MACHINE

    monkeypatch.setattr(kit_units, "environment", lambda: MACHINE)


class Gates:
    """Deterministic gates. `alone`: the op and the gate's word of what fails alone; `joint`: how it ends together;
    `blind`: ops whose mutants are let through then."""

    def __init__(
        self,
        alone: Sequence[tuple[str, str]] = (),
        joint: Status = Status.PASS,
        blind: Mapping[str, str] | None = None,
    ) -> None:
        self.alone, self.joint, self.blind = tuple(alone), joint, blind
        self.asked: list[str] = []

    def table(self) -> Mapping[str, Runner]:
        return {gate: self._runner(gate) for gate in GATE_NAMES}

    def _runner(self, gate: str) -> Runner:
        def run(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
            self.asked.append(f"{op.name} {gate}")
            status = Status.FAIL if (op.name, gate) in self.alone else Status.PASS
            result = GateResult(GATE_NAMES[gate], status, f"{gate}.{status}", "alone", {}, 1.0, GATE_CONTRACT)
            timed = gate == "perf" and status is Status.PASS
            points = tuple(point(a.record) for a in unit.artefacts) if timed else ()
            return Done(result, points, {"samples": [1.0]} if timed else None)

        return run

    def ensemble(self, ops: Sequence[Op], units: Sequence[Unit], cache: Path, deadline: float, **_: Any) -> Done:
        self.asked.append("+".join(op.name for op in ops))
        assert [{a.record.problem.op for a in u.artefacts} for u in units] == [{op.name} for op in ops]
        evidence = {"seeds": {"draws": 7}, "mutants": {f"{op.name} tile_scale": {} for op in ops}}
        if self.blind is not None:
            evidence |= {"insensitive": self.blind, "otherwise": "58 exercises"}
        code = f"fullmodel.{'insensitive' if self.blind else self.joint}"
        return Done(GateResult(MODEL, self.joint, code, "together", evidence, 9.0, GATE_CONTRACT))


@pytest.fixture
def hosts(tmp_path: Path) -> Callable[..., list[Host]]:
    folder = tmp_path / "kit" / "objects"
    folder.mkdir(parents=True)

    def build(gates: Gates, *words: str, ops: Sequence[Op] = OPS, candidates: int = 1) -> list[Host]:
        found = []
        for op in ops:
            carried = []
            for name in (str(n) * 64 for n in range(1, candidates + 1)):
                builds = tuple(make(folder, 1, d, op=op, candidate=name).record for d in (SERVED, "nano"))
                carried.append(CarriedCandidate(name, builds, ()))
            info = {
                "kit": "f" * 64,
                "run": f"20260101T000000Z-{op.name}-abcdef",
                "key": KEY.hex(),
                "op": op.name,
                "op_contract": op.contract_sha256(),
                "gate_contract": GATE_CONTRACT,
                "candidates": [to_json(c) for c in carried],
            }
            args = parse(["--together", "--out", str(tmp_path / f"{op.name}.json"), *words])
            args.raw = str(tmp_path / f"{op.name}.xz")
            found.append(Host(tmp_path / "kit", info, args, ARCH, gates.table()))
        return found

    return build


def parts(args: argparse.Namespace) -> dict[str, Any]:
    found = from_json(EvidenceSet, json.loads(Path(args.out).read_bytes()))
    assert all(check(part, KEY) for part in found.parts)
    return {unit_of(part.evidence): part.evidence for part in found.parts}


def test_a_pass_together_is_evidence_for_each_run_and_names_the_others(hosts: Any) -> None:
    gates = Gates()
    made = hosts(gates)
    together(made, 60.0, gates.ensemble)
    assert [host.gates() for host in made] == [0, 0, 0]
    assert gates.asked.count("moe_shared+attn_res+kda_core") == 1
    assert not [asked for asked in gates.asked if asked.endswith(" model")]
    for host in made:
        (result,) = (kept := parts(host.args)[MODEL]).results
        assert (result.message, kept.op, kept.run) == ("together", host.op.name, host.run_id)
        assert kept.facts["together"] == {op.name: "1" * 64 for op in OPS if op is not host.op}
        assert {key.split("/")[0] for key in kept.objects} == {host.op.name}
        assert "together" not in parts(host.args)[f"perf-sweep {ARCH} {SERVED} t1"].facts


def test_numbers_are_checked_before_and_speed_after(hosts: Any) -> None:
    gates = Gates()
    made = hosts(gates)
    together(made, 60.0, gates.ensemble)
    for host in made:
        host.gates()
    middle = gates.asked.index("moe_shared+attn_res+kda_core")
    assert {a.split()[1] for a in gates.asked[:middle]} == {"numeric"}
    assert {a.split()[1] for a in gates.asked[middle + 1 :]} == {"perf"}


@pytest.mark.parametrize("joint", [Status.FAIL, Status.ERROR])
def test_anything_but_a_pass_together_is_kept_for_nobody_and_each_is_judged_alone(hosts: Any, joint: Status) -> None:
    gates = Gates(joint=joint)
    made = hosts(gates)
    together(made, 60.0, gates.ensemble)
    assert all(MODEL not in parts(host.args) for host in made)
    assert [host.gates() for host in made] == [0, 0, 0]
    for host in made:
        assert f"{host.op.name} model" in gates.asked
        assert "together" not in parts(host.args)[MODEL].facts


def test_ops_whose_mutants_were_let_through_are_judged_alone_and_the_others_have_passed(hosts: Any) -> None:
    gates = Gates(joint=Status.ERROR, blind={"kda_core": "mutant kda_core tile_scale passed"})
    made = hosts(gates)
    together(made, 60.0, gates.ensemble)
    assert [MODEL in parts(host.args) for host in made] == [True, True, False]
    for host in made[:2]:
        (result,) = parts(host.args)[MODEL].results
        assert (result.code, result.message) == ("fullmodel.pass", "58 exercises")
        assert set(result.evidence) == {"seeds", "mutants"}
        assert list(result.evidence["mutants"]) == [f"{host.op.name} tile_scale"]
    assert [host.gates() for host in made] == [0, 0, 0]
    assert [a for a in gates.asked if a.endswith(" model")] == ["kda_core model"]


def test_a_candidate_that_has_failed_takes_no_seat(hosts: Any) -> None:
    gates = Gates(alone=[("attn_res", "numeric")])
    made = hosts(gates)
    together(made, 60.0, gates.ensemble)
    assert "moe_shared+kda_core" in gates.asked
    assert [host.gates() for host in made] == [0, 1, 0]
    assert MODEL not in parts(made[1].args) and "attn_res model" not in gates.asked


def test_a_router_is_judged_alone(hosts: Any) -> None:
    gates = Gates()
    made = hosts(gates, ops=(*OPS[:2], ROUTER))
    together(made, 60.0, gates.ensemble)
    assert "moe_shared+attn_res" in gates.asked
    assert [host.gates() for host in made] == [0, 0, 0]
    assert "moe_router model" in gates.asked


def test_several_candidates_of_a_run_are_judged_one_by_one(hosts: Any) -> None:
    gates = Gates()
    made = [*hosts(gates, ops=OPS[:1], candidates=2), *hosts(gates, ops=OPS[1:])]
    together(made, 60.0, gates.ensemble)
    assert "attn_res+kda_core" in gates.asked
    assert made[0].gates() == 0
    assert gates.asked.count("moe_shared model") == 2


def test_what_has_a_verdict_is_not_judged_again(hosts: Any) -> None:
    gates = Gates()
    made = hosts(gates)
    together(made, 60.0, gates.ensemble)
    before = list(gates.asked)
    together(hosts(gates), 60.0, gates.ensemble)
    assert gates.asked == before


def test_a_single_candidate_is_judged_as_ever(hosts: Any) -> None:
    gates = Gates()
    made = hosts(gates, ops=OPS[:1])
    together(made, 60.0, gates.ensemble)
    assert made[0].gates() == 0
    assert gates.asked.count("moe_shared model") == 1


def test_a_run_with_nothing_to_do_is_passed_over(hosts: Any) -> None:
    gates = Gates()
    made = [*hosts(gates, ops=OPS[:2]), *hosts(gates, "--points", "t64", ops=OPS[2:])]
    together(made, 60.0, gates.ensemble)
    assert "moe_shared+attn_res" in gates.asked


def test_a_broken_evaluation_is_said_and_the_runs_go_on_alone(hosts: Any, capsys: Any) -> None:
    gates = Gates()

    def broken(*_: Any, **__: Any) -> Done:
        raise RuntimeError("no such thing")

    made = hosts(gates)
    together(made, 60.0, broken)
    assert [host.gates() for host in made] == [0, 0, 0]
    assert "RuntimeError: no such thing" in capsys.readouterr().out


def test_it_is_a_flag_of_the_kit(hosts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gates, asked = Gates(), []
    made = hosts(gates)
    monkeypatch.setattr(kit_host, "device_arch", lambda: ARCH)
    monkeypatch.setattr(kit_host, "together", lambda found, deadline: asked.append((len(found), deadline)))
    monkeypatch.setattr(kit_host, "talking", lambda say, trace: gates.table())
    table = {"gate_contract": GATE_CONTRACT, "runs": [host.info for host in made]}
    words = ["--out", str(tmp_path / "e.json"), "--raw", str(tmp_path / "r.xz"), "--deadline", "50"]
    assert kit_host.main(words, str(tmp_path / "kit"), table) == 0 and not asked
    assert kit_host.main([*words, "--together"], str(tmp_path / "kit"), table) == 0 and asked == [(3, 50.0)]


def test_a_plan_or_a_ranking_evaluates_nothing(hosts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gates, asked = Gates(), []
    made = hosts(gates)
    monkeypatch.setattr(kit_host, "device_arch", lambda: ARCH)
    monkeypatch.setattr(kit_host, "together", lambda found, deadline: asked.append(deadline))
    table = {"gate_contract": GATE_CONTRACT, "runs": [host.info for host in made]}
    assert kit_host.main(["--plan", "--together"], str(tmp_path / "kit"), table) == 0 and not asked
