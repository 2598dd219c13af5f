"""One rank's side of the numeric check: every family on one state of mailboxes, twice, and with ranks apart in time.

A record a sequence: {"problem", "what", "family", "seed", "outputs": [{"step", "tensors"}], "findings"}, and one a
problem when all ranks have returned: {"problem", "calls", "contents": [[name, tensor], ...], "workspaces": [...]}.
Between calls there is no barrier: mailboxes carry over from family to family, as from layer to layer in a model.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from kgen.contract import Role, Values
from kgen.contract.ranks import of_rank
from kgen.gates.ranks import subject
from kgen.gates.ranks.digest import digest
from kgen.gates.ranks.job import RankedSpec
from kgen.gates.ranks.skew import delay
from kgen.gates.ranks.worker import Bench
from kgen.gates.runner.buffers import POISON, SECOND_POISON, BufferSet
from kgen.gates.runner.numeric import kept_steps, step_seed

LATE = "late"  # the first family again, each rank delayed before calls by a time of its own
LATE_STEPS = 32
LATE_US = (0.0, 0.0, 2.0, 10.0, 100.0)


@dataclass
class Ranked:
    """What the sequences of one problem share on one rank."""

    bench: Bench
    spec: RankedSpec
    subject: subject.Subject
    buffers: BufferSet
    findings: list[tuple[str, str]] = field(default_factory=list)

    def inputs(self, family: str, seed: int) -> Values:
        """This rank's part of what all ranks draw alike, on the device."""
        drawn = self.spec.op.inputs(self.spec.problem, family, seed, "cpu")
        mine = of_rank(drawn, self.bench.rank)
        return {k: v.to(self.bench.device) if isinstance(v, torch.Tensor) else v for k, v in mine.items()}

    def close_up(self, what: str) -> None:
        """Guards of everything that a call could have written past."""
        around = {f"workspace {i}": b for i, b in enumerate(self.subject.work)}
        around |= {f"mailbox {m.symmetric.name}": m.buffer for m in self.subject.mapped}
        broken = [*self.buffers.broken_guards(), *(n for n, b in around.items() if not bool(b.intact()))]
        self.findings += [("guard", f"{what}: a call wrote outside {name}") for name in broken]


def opened(bench: Bench, spec: RankedSpec, transport: Any) -> Ranked:
    """Loads one problem's kernel on this rank. Every rank does so for the same problems in the same order."""
    bench.out.at(f"load {spec.label}")
    loaded = subject.load(spec, bench.rank, transport, bench.device, bench.cache)
    bench.meeting.barrier()  # linking takes seconds, a kernel's wait for its peers is bounded
    return Ranked(bench, spec, loaded, BufferSet(spec.op, spec.problem, bench.device))


@torch.no_grad()
def run(bench: Bench) -> dict[str, Any]:
    transport = bench.transport()
    seed, wanted = int(bench.job["seed"]), bench.job.get("families") or ()
    for spec in bench.specs():
        ranked = opened(bench, spec, transport)
        families = [f for f in spec.op.families if not wanted or f.name in wanted]
        for number, family in enumerate(families):
            _sequence(ranked, family.name, family.name, seed + 1000 * number, family.steps, ())
        _sequence(ranked, LATE, families[0].name, seed + 1000 * len(families), LATE_STEPS, LATE_US)
        collect(ranked)
    return {}


def _sequence(ranked: Ranked, what: str, family: str, seed: int, steps: int, delays: tuple[float, ...]) -> None:
    ranked.findings.clear()
    drawn = [ranked.inputs(family, step_seed(seed, step)) for step in range(steps)]
    first, digests = _steps(ranked, what, drawn, POISON, delays, seed)
    _, repeated = _steps(ranked, what, drawn, SECOND_POISON, delays, seed + 1)
    for name, of in digests.items():
        if of != repeated[name]:
            step = next(i for i, (a, b) in enumerate(zip(of, repeated[name], strict=True)) if a != b)
            text = f"{what}: two runs differ in {name} (step {step}), or it was not written"
            ranked.findings.append(("nondeterministic", text))
    out = ranked.bench.out
    kept = [{"step": step, "tensors": {n: out.tensor(t) for n, t in got.items()}} for step, got in first.items()]
    body = {"problem": ranked.spec.label, "what": what, "family": family, "seed": seed, "steps": steps}
    out.record({**body, "outputs": kept, "every": digests, "findings": list(ranked.findings)})


def _steps(
    ranked: Ranked, what: str, drawn: list[Values], poison: int, delays: tuple[float, ...], seed: int
) -> tuple[dict[int, dict[str, torch.Tensor]], dict[str, list[int]]]:
    """Consecutive calls on one state: outputs and states after the kept steps, and their digests after every step."""
    bench, buffers = ranked.bench, ranked.buffers
    late = random.Random(f"{seed}/{bench.rank}")
    moving = buffers.names(Role.IN)
    values, kept, found = drawn[0], {}, list[dict[str, torch.Tensor]]()
    buffers.load(values)
    buffers.poison(poison)
    call = ranked.subject.bind(buffers)
    with bench.out.candidate(f"{ranked.spec.label} {what}", bench.device):
        for step, fresh in enumerate(drawn):
            if step:
                buffers.load(fresh, moving)
                values = {**values, **{n: fresh[n] for n in moving}}
            if delays:
                delay(bench.device, late.choice(delays))
            call()
            got = buffers.written()
            found.append({name: digest(tensor[None]) for name, tensor in got.items()})
            if step in kept_steps(len(drawn)):
                kept[step] = got
    ranked.findings += [("inputs_written", f"{what}: a call changed {n}") for n in buffers.changed_inputs(values)]
    ranked.close_up(what)
    return kept, {name: torch.cat([of[name] for of in found]).tolist() for name in found[0]}


def collect(ranked: Ranked, calls: int = 0, what: str = "") -> None:
    """When all ranks have returned from all calls: what the mailboxes and workspaces hold.

    `calls`: made on the mailboxes so far, if not those that the subject counted.
    """
    bench, out = ranked.bench, ranked.bench.out
    if bench.device != "cpu":
        torch.cuda.synchronize()
    bench.meeting.barrier()
    contents = [[m.symmetric.name, out.tensor(m.own)] for m in ranked.subject.mapped]
    work = [out.tensor(b.tensor) for b in ranked.subject.work]
    body = {"problem": ranked.spec.label, "calls": calls or ranked.subject.calls, "workspaces": work}
    out.record({**body, "contents": contents, "what": what})
    bench.meeting.barrier()
