"""Facts counted in PTX text. The PTX comes from the untrusted build: a hint for people and cost models, no proof."""

import re

VECTOR = r"\.v[48]\."
# fact -> pattern of one instruction line (after predicates)
COUNTED = {
    "global_loads": r"ld\.global\b",
    "global_loads_16b": rf"ld\.global\S*({VECTOR}\w*32|\.v2\.\w*64)",
    "global_loads_32b": r"ld\.global\S*(\.v8\.\w*32|\.v4\.\w*64)",
    "no_allocate": r"ld\.global\S*no_allocate",
    "global_stores": r"st\.global\b",
    "local": r"(ld|st)\.local\b",
    "shared_loads": r"ld\.shared\b",
    "mma": r"mma\.sync\b",
    "wgmma": r"wgmma\.mma_async\b",
    "tcgen05_mma": r"tcgen05\.mma\b",
    "cp_async": r"cp\.async\.c[ag]\b",
    "bulk_copies": r"cp\.async\.bulk\b",
    "barriers": r"(bar|barrier)\.(cta\.)?sync\b",
    "shuffles": r"shfl\.sync\b",
    "atomics": r"(atom|red)\.",
    "pdl_wait": r"griddepcontrol\.wait\b",
    "pdl_launch": r"griddepcontrol\.launch_dependents\b",
}
PATTERNS = {name: re.compile(pattern) for name, pattern in COUNTED.items()}
HEADS = re.compile(r"ld|st|mma|wgmma|tcgen05|cp|bar|shfl|atom|red|griddepcontrol")  # what a counted line begins with
INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*(?:\s|;).*)$")


def facts(text: str) -> dict[str, int]:
    """Counts by name over all kernels; `instructions` counts every instruction line; zero counts are left out."""
    lines = [m[1] for line in text.splitlines() if (m := INSTRUCTION.match(line))]
    told = [line for line in lines if HEADS.match(line)]
    counts = {name: sum(1 for line in told if pattern.match(line)) for name, pattern in PATTERNS.items()}
    return {"instructions": len(lines), **{name: n for name, n in counts.items() if n}}
