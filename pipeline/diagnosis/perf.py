"""What build evidence, timed points and, where they were read, hardware counters say of speed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kgen.diagnosis import counters, phases, waits
from kgen.diagnosis.findings import PERF, Finding
from kgen.diagnosis.words import cell
from kgen.gates.occupancy import SMS, limits, resident
from kgen.gates.rates import MEASURED
from kgen.records import PerfPoint

READ = MEASURED["NVIDIA H200"].read  # bytes/s: the rate behind a point's floor, where nothing else is known
WORST = 6  # timed points that are said
FEW_WARPS = 16  # of 64 an SM
MOST_IDLE = 0.9  # a grid that fills this share of the SMs gains nothing from more blocks


def findings(problems: Mapping[str, Any], points: Sequence[PerfPoint]) -> list[Finding]:
    """`problems`: the compile gate's evidence by problem key."""
    found = [_point(p) for p in sorted(points, key=lambda p: -p.ratio)[:WORST] if math.isfinite(p.ratio)]
    for key, facts in problems.items():
        if isinstance(facts, Mapping) and isinstance(facts.get("launches"), list | tuple):
            launches = [x for x in facts["launches"] if isinstance(x, Mapping)]
            found += [_launch(key, x) for x in launches if _whole(x)]
            found += _instructions(key, facts.get("ptx"))
            found += counters.findings(key, facts.get("counters"))
    return [*waits.findings(problems), *found, *phases.findings(problems, points, READ)]


def _point(p: PerfPoint) -> Finding:
    rate = p.roofline * READ / 1e12
    bytes_ = p.floor_us * READ / 1e12
    text = (
        f"{cell(p.problem)} {cell(p.scenario or p.column)} n={p.tokens}: {p.candidate_us:.2f} us,"
        f" {p.ratio:.3f} of {cell(p.best_baseline)}; {bytes_:.3g} MB in at least {p.floor_us:.2f} us,"
        f" {rate:.2f} TB/s reached ({p.roofline:.0%} of a plain read)"
    )
    fix = "more bytes in flight early: wider loads, more of them, weights prefetched" if p.roofline < 0.6 else ""
    return Finding(PERF, 0, "point", text, fix, {"ratio": p.ratio, "roofline": p.roofline})


def _whole(launch: Mapping[str, Any]) -> bool:
    return {"grid", "block", "registers", "smem"} <= set(launch)


def _launch(key: str, launch: Mapping[str, Any]) -> Finding:
    threads, blocks = math.prod(launch["block"]), math.prod(launch["grid"])
    asked = threads, int(launch["registers"]), int(launch["smem"])
    by, fits, sms = limits(*asked), resident(*asked), SMS.get(key.split("/")[-1], SMS["sm_90a"])
    binds = min(by, key=lambda name: by[name])
    waves, warps = blocks / (sms * fits), min(fits, math.ceil(blocks / sms)) * -(-threads // 32)
    stack = int(launch.get("stack_bytes", 0))
    fixes = []
    if stack:
        fixes.append("spills: fewer live values, constant indices")
    if blocks < MOST_IDLE * sms:
        fixes.append(f"only {blocks} blocks for {sms} SMs: at served sizes, split K or the columns further")
    elif 1 < waves < 3 and waves % 1 < 0.5 and waves % 1 > 0:
        fixes.append("the last wave is nearly empty: a multiple of what is resident, or persistent")
    if warps < FEW_WARPS:
        fixes.append(
            f"{warps} warps an SM hide little latency: more bytes in flight a thread, where not all are already"
        )
    text = (
        f"{cell(key)} {cell(str(launch.get('kernel', ''))[:40])}: {blocks} blocks of {threads},"
        f" {fits} resident an SM (limit: {binds}), {warps} of 64 warps, {waves:.2f} waves,"
        f" {launch['registers']} registers, {launch['smem']} B shared"
        + (f", {stack} B stack a thread" if stack else "")
    )
    detail = {"resident": fits, "waves": waves, "warps": warps, "binds": binds}
    return Finding(PERF, 1 if fixes else 3, "launch", text, "; ".join(fixes), detail)


def _instructions(key: str, facts: Any) -> list[Finding]:
    if not isinstance(facts, Mapping) or not facts:
        return []
    n = {name: int(count) for name, count in facts.items() if isinstance(count, int)}
    loads = n.get("global_loads", 0)
    wide = n.get("global_loads_16b", 0) + n.get("global_loads_32b", 0)
    fixes = []
    if loads and wide * 2 < loads:
        fixes.append("most global loads are narrower than 16 bytes: vectors of 8 bf16")
    if loads and not n.get("no_allocate"):
        fixes.append("no no-allocate hint: weights that are read once push reused data out of L1")
    if n.get("local"):
        fixes.append("local memory is used: spills, or arrays indexed at run time")
    said = ", ".join(f"{name} {count}" for name, count in sorted(n.items()))
    return [Finding(PERF, 2 if fixes else 4, "ptx", f"{cell(key)} PTX: {said}", "; ".join(fixes), n)]
