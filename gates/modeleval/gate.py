"""Gate `full-model-eval` on the decode model: `run` for one op or several at once, on a GPU or on stand-ins."""

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kgen.contract.op import Op
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.environment import device_arch
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import Seeds
from kgen.gates.modeleval.plan import TABLE, Sizes, plan
from kgen.gates.modeleval.rules_tokens import Mark
from kgen.gates.modeleval.sides import Running, Starter
from kgen.gates.modeleval.trial import Trial
from kgen.gates.runner import host
from kgen.gates.runner.job import Built, LoadSpec, spec
from kgen.gates.skipping import skip_without
from kgen.model import nano
from kgen.model.nano import scoring
from kgen.ops import REGISTRY
from kgen.records import GateResult, to_json

GATE = "full-model-eval"
DEADLINE_SECONDS = 480.0
JUDGING = 0.1  # of that: for the judge, who comes after the processes
SEED_BITS = 62
PARALLEL = {"cuda": 7, "cpu": 1}  # processes at a time: nothing is timed; of a slice each takes some 15 GB
WEIGHTS = "weights.safetensors"


def trained_weights() -> Path:
    """Where the small model's weights are kept, whether or not they are there."""
    return Path(nano.__file__).parent / WEIGHTS


def run(
    ops: Op | Sequence[Op],
    artefacts: Sequence[Built],
    mutants: Sequence[Built],
    *,
    cache: Path,
    device: str = "cuda",
    deadline: float = DEADLINE_SECONDS,
    seeds: tuple[int, int, int] | None = None,
    next_command: str = "",
    to_spec: Callable[[Built], LoadSpec] = spec,
    running: Running = host.running,
    sizes: Sizes | None = None,
    checkpoint: Path | None = None,
    mark: Mark = scoring.mark,
    say: Callable[[str], None] = lambda line: None,
) -> GateResult:
    """Judge one candidate of each op, all in their seats at once. `mutants` are builds with `record.defect` set.

    `cache` is a folder for linked objects; `deadline` in seconds bounds the whole gate: what is not reached by then
    makes it an error. `seeds` (weights, tokens,
    draws) default to fresh secret ones, `sizes` to the device's row of the plan, `checkpoint` to the trained weights.
    `to_spec` puts a stand-in in an artefact's place, `running` another way to run a job, `mark` other marks: for
    machines without a GPU. `say` hears of each process as it ends. Raises ValueError without ops or builds of them.
    """
    started = time.monotonic()
    chosen = (ops,) if isinstance(ops, Op) else tuple(ops)
    names = tuple(op.name for op in chosen)
    if not chosen or not artefacts or {b.record.problem.op for b in artefacts} != set(names):
        raise ValueError(f"give builds of each op that is judged ({', '.join(names) or 'none'}), and of no other")
    specs = [to_spec(a) for a in artefacts]
    if (skipped := skip_without(device, chosen[0], specs, GATE, "fullmodel", next_command)) is not None:
        return skipped
    kind = "cpu" if device == "cpu" else "cuda"
    arch = device_arch() if kind == "cuda" else specs[0].problem.arch
    mine, theirs = ([b for b in builds if b.record.problem.arch == arch] for builds in (artefacts, mutants))
    drawn = Seeds(*(seeds or (secrets.randbits(SEED_BITS) for _ in range(3))))
    census, weights = Census(REGISTRY, arch), checkpoint or trained_weights()
    table = sizes or TABLE[kind]
    trial = Trial(
        ops=names,
        artefacts=mine,
        mutants=theirs,
        plan=plan([b.record.problem for b in mine], chosen[0].pack.small, table, kind, census),
        census=census,
        starter=Starter(running, to_spec, drawn, device, arch, cache, weights, started + (1 - JUDGING) * deadline),
        mark=mark,
        trained=weights.is_file(),
        say=say,
        evidence={"seeds": to_json(drawn), "device": device, "ops": list(names), "sizes": to_json(table)},
    )
    with ThreadPoolExecutor(PARALLEL[kind]) as pool:
        verdict = trial.run(pool)
    took = round(time.monotonic() - started, 1)
    evidence = to_json(trial.evidence)
    return GateResult(GATE, verdict.status, verdict.code, verdict.message, evidence, took, GATE_CONTRACT)
