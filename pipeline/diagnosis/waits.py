"""Kernels whose blocks wait for one another without a cooperative launch: one finding each.

They hang where a block is waited for that does not fit on the GPU beside those that wait. The compile gate refuses what
is not sure to fit (kgen.gates.spins); what does fit may hang all the same beside other kernels, or on a slice of a GPU.
Not covered: whether the wait is right (the interpreter runs it), and waits that the PTX does not show.
"""

import math
from collections.abc import Mapping
from typing import Any

from kgen.diagnosis.findings import PERF, Finding
from kgen.diagnosis.words import cell
from kgen.gates.occupancy import SMS, sure

NEEDED = ("kernel", "grid", "block", "registers", "smem")


def findings(problems: Mapping[str, Any]) -> list[Finding]:
    """`problems`: the compile gate's evidence by problem key.

    The n-th launch of a call is said once, at the problem where its grid is largest: kernels are called otherwise at
    other sizes.
    """
    worst: dict[int, tuple[float, Finding]] = {}
    for key, facts in problems.items():
        listed = facts.get("launches") if isinstance(facts, Mapping) else None
        for place, launch in enumerate(listed if isinstance(listed, list | tuple) else ()):
            if isinstance(launch, Mapping) and all(name in launch for name in NEEDED):
                load, found = _of(key, facts.get("waits") or (), launch)
                if found is not None and load > worst.get(place, (0.0, None))[0]:
                    worst[place] = (load, found)
    return [found for _, found in worst.values()]


def _of(key: str, waits: Any, launch: Mapping[str, Any]) -> tuple[float, Finding | None]:
    """How far the launch fills the GPU, and the finding where its blocks wait for one another."""
    blocks, arch = math.prod(launch["grid"]), key.split("/")[-1]
    attributes = launch.get("attributes")
    attributes = attributes if isinstance(attributes, Mapping) else {}
    cluster = math.prod(launch.get("cluster") or (1,))
    if launch["kernel"] not in waits or attributes.get("cooperative") or blocks <= cluster:
        return 0.0, None
    sizes = math.prod(launch["block"]), int(launch["registers"]), int(launch["smem"])
    fits = sure(arch, *sizes, cluster, int(attributes.get("smem_carveout", 0)))
    bound = f"{fits} are sure to run at once on {SMS.get(arch, SMS['sm_90a'])} SMs"
    said = f"no more than {bound}: it may never end" if blocks > fits else f"{bound}, if nothing else runs there"
    text = (
        f"{cell(key)} {cell(str(launch['kernel']))[:40]}: its blocks wait in a loop for one another and the launch is"
        f" not cooperative; {blocks} blocks, {said}"
    )
    fix = "cooperative=True in .launch; or keep the grid within what fits at once, and say in a comment why it does"
    return blocks / fits, Finding(PERF, 0 if blocks > fits else 1, "wait", text, fix, {"blocks": blocks, "fit": fits})
