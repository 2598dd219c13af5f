"""A run with one candidate and evidence about it from a GPU that only exists on paper.

made = proven(tmp_path / "runs", tmp_path / "cache")      built, and waiting for a GPU
files = made.evidence(folder)                             evidence.json and raw.json.xz, as a kit would leave them
"""

from dataclasses import dataclass, replace
from pathlib import Path

from support.loops import OP
from support.sets import LEFT, TIE, WIN, environment, make_case, point

from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.perf import counts
from kgen.loop.intake import judge
from kgen.loop.rounds import Ranked, Round, write_round
from kgen.loop.session import begin
from kgen.loop.settings import Settings
from kgen.promotion import Case
from kgen.records import GateResult, PerfPoint, Status, to_json
from kgen.store import Blobs, Run, Runs
from kgen.store.documents import json_bytes
from kgen.store.signing import sign

RATIOS = {1: WIN, 2: WIN, 8: TIE, 16: LEFT}
DIMS = "k3-tp8"


def table() -> list[dict[str, object]]:
    """Two families of one output; the second one is nearer to what is allowed."""
    row: dict[str, object] = {
        "problem": f"{OP.name}/{DIMS}/t8/sm_90a",
        "what": "normal",
        "output": "y",
        "seed": 1,
        "allowed_true": 4e-3,
        "allowed_rounded": 4e-3,
        "candidate_true": 1.01e-3,
        "stock_true": 1.1e-3,
        "rounded_true": 1.2e-3,
        "candidate_rounded": 1.3e-3,
        "stock_rounded": 1.4e-3,
        "bit_exact": 0.93,
        "strain": 0.4,
        "judged": 5,
    }
    return [row, {**row, "what": "outlier", "candidate_true": 2.02e-3, "strain": 0.8}]


def model_evidence() -> dict[str, object]:
    agreement = {"items": 256, "losses": 3, "wins": 4, "p": 1.0}
    ratios = {"logits": [1.01, 0.98, 1.04], "hidden": [1.0, 0.9, 1.1], "kl": [1.0, 0.9, 1.2]}
    modes = {"graph": {**ratios, "agreement": agreement}}
    marks = {"items": 832, "candidate": 0.985, "stock": 0.9838, "difference": [0.0012, -0.004, 0.0062]}
    paths = {"hazard": [1.04, 0.8, 1.3], "departures": [52, 50], "watched": [4000, 4100]}
    tasks = {"recall": marks, "gated": {"tasks": ["recall"], **marks, "lower_bound": -0.003}}
    mutants = {"moe_shared tile_scale": {"refused": True, "model": "slice-tp8", "first": "far"}}
    small = {"tasks nano t64 graph": tasks, "free nano t16 s4096 graph": paths}
    return {"models": {"slice-tp8": {"rows": {"modes": modes}}, "nano": small}, "mutants": mutants}


def results(status: Status = Status.PASS) -> tuple[GateResult, ...]:
    ran = status is not Status.SKIP
    evidence = ({"table": table()} if ran else {}, model_evidence() if ran else {}, {})
    names = ("unit-numeric", "full-model-eval", "perf-sweep")
    word = "no_gpu" if status is Status.SKIP else status.value
    return tuple(
        GateResult(n, status, f"{n.split('-')[1]}.{word}", f"it {word}", e, 1.5, GATE_CONTRACT)
        for n, e in zip(names, evidence, strict=True)
    )


@dataclass(frozen=True)
class Proven:
    run: Run
    case: Case

    def evidence(self, folder: Path, key: bytes | None = None) -> Path:
        """Evidence as files; signed with the run's key, another one, or (b"") not at all."""
        body = self.case.evidence.evidence
        key = self.run.key() if key is None else key
        signed = sign(body, key) if key else replace(self.case.evidence, hmac="")
        (folder / "raw.json.xz").write_bytes(self.case.raw)
        (folder / "evidence.json").write_bytes(json_bytes(to_json(signed)))
        return folder / "evidence.json"


def proven(runs: Path, cache: Path, status: Status = Status.PASS, text: str = "kernel 1") -> Proven:
    settings = Settings(OP.name, "search", archs=("sm_90a",), dims=(DIMS,), bins=tuple(RATIOS)).checked(OP)
    run = begin(Runs(runs), OP, settings, "kgen propose --op moe_shared")
    contract = OP.contract_sha256()
    case = make_case(
        text,
        RATIOS,
        run.key(),
        dims=DIMS,
        op_contract=contract,
        gate_contract=GATE_CONTRACT,
        raw=b'{"samples": [1, 2]}',
        run=run.id,
    )
    evidence = replace(case.evidence.evidence, results=results(status), points=points(case), environment=environment())
    case = replace(case, evidence=sign(evidence, run.key()))
    blobs = Blobs(cache / "objects")
    for data in case.objects.values():
        blobs.put(data, ".o")
    with run.lock():
        folder = run.add(case.candidate)
        folder.write_builds(case.builds)
        folder.write_result(GateResult("compile", Status.PASS, "compile.pass", "built", {}, 2.0, GATE_CONTRACT))
        for result in results(Status.SKIP):
            folder.write_result(result)
        judge(folder)
        order = (Ranked(folder.path.name, 12.5),)
        write_round(run, Round(1, (folder.path.name,), order=order, ranked=True, seconds=2.0, judged=True))
        run.finish("staged")
    return Proven(run, case)


def points(case: Case) -> tuple[PerfPoint, ...]:
    graph = [point(p, RATIOS[p.tokens], n) for p in (b.problem for b in case.builds) for n in counts(OP, p.tokens)]
    cold = [replace(p, column="cold", timer="cold timer") for p in graph]
    return (*graph, *cold)
