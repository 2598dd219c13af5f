"""Gate `full-model-eval`: the decode model with the candidate in place, against stock and against float64.

Stock, candidate, the switched-off candidate and each mutant decode the same tokens in fresh processes of their own;
this judge alone sees them together. Rules: fullmodel_rules.py (numbers), fullmodel_attest.py (launches).

    fullmodel.pass         all rules hold, and every mutant was refused
    fullmodel.logits       farther from float64 than stock: over all rows, in a column block, a row position, rare rows
    fullmodel.agreement    significantly fewer greedy tokens right, or free generation leaves float64 earlier
    fullmodel.attestation  the candidate's kernels did not run exactly as often as the build record says
    fullmodel.insensitive  error: a mutant passed, or could not be tried: the gate proves nothing
    fullmodel.crash        fail: the candidate's process died or hung; error: one of the other processes did
    fullmodel.no_seat      error: this gate's model does not use the op, so that nothing can be said about it yet
    fullmodel.no_gpu, fullmodel.other_gpu   skip, with the next command

Not covered at this stage: attention layers, quantised experts, long context, sampling, tasks with a measurable score.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kgen.contract.op import Op
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.environment import device_arch
from kgen.gates.fullmodel_sides import Running
from kgen.gates.fullmodel_trial import Trial
from kgen.gates.runner import host
from kgen.gates.runner.job import Built, LoadSpec, spec
from kgen.gates.skipping import skip_without
from kgen.model.step import SEATED
from kgen.records import GateResult, Status

GATE = "full-model-eval"
DEADLINE_SECONDS = 480.0
SEED_BITS = 62
PARALLEL = {"cuda": 3, "cpu": 1}  # processes at a time: nothing is timed, and starting torch is most of their life


def run(
    op: Op,
    artefacts: Sequence[Built],
    mutants: Sequence[Built],
    *,
    cache: Path,
    device: str = "cuda",
    deadline: float = DEADLINE_SECONDS,
    seeds: tuple[int, int] | None = None,
    next_command: str = "",
    to_spec: Callable[[Built], LoadSpec] = spec,
    running: Running = host.running,
) -> GateResult:
    """Judge one candidate. `mutants` are builds with `record.defect` set; `cache` is a folder for linked objects.

    `seeds` (weights, tokens) default to fresh secret ones; `deadline` in seconds bounds the whole gate. `to_spec` puts
    a stand-in in an artefact's place and `running` another way to run a job: both are for machines without a GPU.
    """
    started = time.monotonic()
    specs = [to_spec(a) for a in artefacts]
    if (skipped := skip_without(device, op, specs, GATE, "fullmodel", next_command)) is not None:
        return skipped
    if op.name not in SEATED:
        text = f"the gate's decode model has no seat for {op.name}: it cannot be evaluated, and not promoted, yet"
        return GateResult(GATE, Status.ERROR, "fullmodel.no_seat", text, {}, 0.0, GATE_CONTRACT)
    arch = device_arch() if device != "cpu" else specs[0].problem.arch
    mine, theirs = ([b for b in builds if b.record.problem.arch == arch] for builds in (artefacts, mutants))
    drawn = seeds or (secrets.randbits(SEED_BITS), secrets.randbits(SEED_BITS))
    with ThreadPoolExecutor(PARALLEL["cpu" if device == "cpu" else "cuda"]) as pool:
        finding = Trial(op, mine, theirs, device, drawn, to_spec).run(pool, running, cache, started + deadline)
    took = round(time.monotonic() - started, 1)
    return GateResult(GATE, finding.status, finding.code, finding.message, finding.evidence, took, GATE_CONTRACT)
