"""What strong accesses and fences tell other threads: release and acquire, over single locations of memory.

Accesses without .volatile, .relaxed, .acquire or .release tell nothing. A release is joined to what was released there
before (a release sequence of atomics), an acquire learns all of it. Both count within their scope alone: a release of
CTA scope tells nothing to other CTAs, an acquire of CTA scope (or a fence of that scope after a relaxed read) learns
nothing of them.
"""

import numpy as np

from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Step
from kgen.gates.ptx.syntax import Instruction
from kgen.gates.ptx.target import Target
from kgen.gates.ptx.wave import Group

SCOPES = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 3}
STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
ACROSS = ("acquire", "release", "acq_rel", "volatile", "sc")  # with device scope: CTAs tell each other things


def scope(i: Instruction, atomic: bool = False) -> int:
    """0 for a weak access, else the scope of a strong one."""
    if not atomic and not any(m in STRONG for m in i.modifiers):
        return 0
    named = {"gl": 3, **SCOPES}  # membar.gl is a fence of device scope
    return next((named[m] for m in i.modifiers if m in named), 3)


def across(i: Instruction) -> bool:
    """Whether CTAs without a common cluster may synchronise by it."""
    if i.opcode in ("membar", "fence"):
        return not any(m.startswith(("mbarrier_init", "proxy")) for m in i.modifiers) and scope(i, True) == 3
    shared = any(m.startswith("shared") for m in i.modifiers)
    strong = i.opcode in ("ld", "st", "atom", "red") and any(m in ACROSS for m in i.modifiers)
    return strong and not shared and scope(i) == 3


def _places(target: Target) -> list[tuple[int, int]]:
    return [(id(target.block), offset) for offset in target.offsets.tolist()]


def tell(m: Machine, target: Target, releases: bool, joins: bool, scope: int) -> None:
    """A strong write: what the warp knows (release), or what fences have shown of it. `joins`: an atomic."""
    rows = m.lanes.row[target.index].tolist()
    told = {row: m.clocks.told(np.array([row]))[0] if releases else _shown(m, row, scope) for row in set(rows)}
    homes = {row: _home(m, row, scope) for row in told}
    if not m.sync and all(known is None for known in told.values()):
        return
    for row, place in zip(rows, _places(target), strict=True):
        known, home = told[row], homes[row]
        if not joins:
            m.sync.pop(place, None)
        if known is not None:
            there = m.sync.setdefault(place, {})
            before = there.get(home)
            there[home] = known if before is None else np.maximum(known, before)
    if releases:
        m.clocks.tick(np.unique(m.lanes.row[target.index]))


def _shown(m: "Machine", row: int, scope: int) -> Array | None:
    """What a strong write that is no release tells: what fences of its scope or a wider one have shown."""
    device, near = m.clocks.published(row), m.fenced.get(row) if scope < SCOPES["gpu"] else None
    if device is None or near is None:
        return near if device is None else device
    found: Array = np.maximum(device, near)
    return found


def _home(m: Machine, row: int, scope: int) -> tuple[int, int]:
    """Who may hear a release of a scope: the device, the warp's cluster, or its CTA."""
    return scope, -1 if scope == 3 else int((m.cluster_of_row if scope == 2 else m.cta_of_row)[row])


def heard(m: Machine, target: Target, acquires: bool, scope: int) -> None:
    """A strong read: what was released there is known now (acquire), or after the next fence."""
    if not m.sync:
        return
    rows = m.lanes.row[target.index].tolist()
    for row, place in set(zip(rows, _places(target), strict=True)):
        for home, all_of_it in m.sync.get(place, {}).items():
            if home != _home(m, row, home[0]):
                continue
            known = m.clocks.near(row, all_of_it, scope)
            if acquires:
                m.clocks.learn(np.array([row]), known)
            else:
                before = m.heard.get(row)
                m.heard[row] = known if before is None else np.maximum(known, before)


def fence(d: Decoder, i: Instruction) -> Step:
    """fence and membar order memory."""
    if any(m.startswith(("proxy", "mbarrier_init")) for m in i.modifiers):
        return _special(i)
    far = scope(i, True)

    def step(m: "Machine", g: Group) -> Ended:
        rows = g.rows
        for row in rows.tolist():
            if (known := m.heard.get(row)) is not None:
                m.clocks.learn(np.array([row]), m.clocks.near(row, known, far))
                if far == SCOPES["gpu"]:
                    del m.heard[row]
        if far == SCOPES["gpu"]:
            m.clocks.publish(rows)
        m.fenced.update(zip(rows.tolist(), m.clocks.told(rows), strict=True))
        m.clocks.tick(rows)
        return None

    return step


def _special(i: Instruction) -> Step:
    """fence.proxy.async shows memory to asynchronous work, fence.mbarrier_init initialisations; others do nothing."""
    proxy = i.modifiers[:2] == ("proxy", "async")
    spaces = [s for s in ("shared", "global") if any(m.startswith(s) for m in i.modifiers)] or ["shared", "global"]

    def step(m: "Machine", g: Group) -> Ended:
        if proxy:
            m.clocks.show(g.rows, spaces)
        if "shared" in spaces and (proxy or i.modifiers[0] == "mbarrier_init"):
            m.mbarriers.show(g, proxy)
        return None

    return step
