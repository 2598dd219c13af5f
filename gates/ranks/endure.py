"""One rank's side of the long run: thousands of consecutive calls in graph replays, mailboxes never reset.

A graph holds one call on each of SETS buffer sets. Before each replay states and inputs are rolled to one of VARIANTS
variants, another than the one before, so that data of an earlier call or replay are wrong data. After each replay every
output of every call is reduced to a number that depends on each bit and its place (`digest`); the judge works the same
numbers out from the reference. Then the graph is captured again on new allocations, mailboxes going on, and again with
new mailboxes and workspaces.
"""

import random
from typing import Any

import torch

from kgen.contract import Role, Values
from kgen.gates import timing
from kgen.gates.ranks import check
from kgen.gates.ranks.digest import digest
from kgen.gates.ranks.worker import Bench
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.refill import refilled, refilled_names

SETS = 20
VARIANTS = 16
FIRST, AGAIN, ANEW = "first capture", "captured again on new allocations", "new mailboxes"


def variants(seed: int, replays: int) -> list[int]:
    """Which variant each replay gets, the same for runner and judge; never twice the same in a row."""
    drawn, found = random.Random(f"variants/{seed}"), [0]
    while len(found) < replays:
        found.append((found[-1] + drawn.randrange(1, VARIANTS)) % VARIANTS)
    return found


def set_seed(seed: int, number: int) -> int:
    return seed + number


@torch.no_grad()
def run(bench: Bench) -> dict[str, Any]:
    transport, seed, replays = bench.transport(), int(bench.job["seed"]), int(bench.job["replays"])
    for spec in bench.specs():
        ranked = check.opened(bench, spec, transport)
        family = spec.op.families[0].name
        drawn = [ranked.inputs(family, set_seed(seed, number)) for number in range(SETS)]
        done = _replays(ranked, drawn, seed, replays, FIRST, 0)
        done = _replays(ranked, drawn, seed, max(1, replays // 8), AGAIN, done)
        check.collect(ranked, done, AGAIN)
        anew = check.opened(bench, spec, transport)
        check.collect(anew, _replays(anew, drawn, seed, max(1, replays // 8), ANEW, 0), ANEW)
    return {}


def _replays(ranked: check.Ranked, drawn: list[Values], seed: int, replays: int, what: str, before: int) -> int:
    """Capture and replay; returns how many calls the mailboxes have seen. `before`: those of earlier captures."""
    bench, spec = ranked.bench, ranked.spec
    sets = [BufferSet(spec.op, spec.problem, bench.device) for _ in drawn]
    for each, values in zip(sets, drawn, strict=True):
        each.load(values)
    key, names = spec.label, refilled_names(spec.op, spec.problem)
    with bench.out.candidate(f"{key} {what}: capture", bench.device):
        replay = timing.capture([ranked.subject.bind(each) for each in sets], bench.device)
    with bench.out.candidate(f"{key} {what}: {replays} replays", bench.device):
        found = [_one(replay, sets, drawn, names, seed, variant) for variant in variants(seed, replays)]
    ranked.findings.clear()
    for number, each in enumerate(sets):
        ranked.findings += [("guard", f"{what}, set {number}: {n}") for n in each.broken_guards()]
    ranked.close_up(what)
    digests = {name: torch.stack([of[name] for of in found]).tolist() for name in found[0]}
    body = {
        "problem": key,
        "what": what,
        "seed": seed,
        "replays": replays,
        "sets": len(sets),
        "graph": bench.device != "cpu",
    }
    bench.out.record({**body, "digests": digests, "findings": list(ranked.findings)})
    return before + (1 + replays) * len(sets)  # capture() calls each once


def _one(
    replay: timing.Call, sets: list[BufferSet], drawn: list[Values], names: list[str], seed: int, variant: int
) -> dict[str, torch.Tensor]:
    """One replay on rolled values, its outputs poisoned before; digests by output and state, int64 [sets]."""
    for number, (each, values) in enumerate(zip(sets, drawn, strict=True)):
        each.load(refilled(values, names, seed, variant, number))
        each.poison()
    replay()
    written = sets[0].names(Role.OUT, Role.STATE)
    return {name: digest(torch.stack([each.buffers[name].tensor for each in sets])) for name in written}
