"""Facts counted in PTX text. The PTX comes from the untrusted build: a hint for people and cost models, no proof."""

import functools
import re
from collections import Counter

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
# The first word of an instruction line; no pattern above looks behind it. Lines end in line feeds alone.
WORD = re.compile(r"^[^\S\n]*(?:@!?%\w+[^\S\n]+)?([a-z][\w.:]*(?=[^\S\n]|;)\S*).*", re.MULTILINE)


def facts(text: str) -> dict[str, int]:
    """Counts by name over all kernels; `instructions` counts every instruction line; zero counts are left out."""
    words = Counter(WORD.findall(in_lines(text)))
    counts = Counter[str]()
    for word, n in words.items():
        if HEADS.match(word):
            counts.update(dict.fromkeys(_counts_as(word), n))
    return {"instructions": words.total(), **{name: counts[name] for name in PATTERNS if counts[name]}}


@functools.lru_cache(maxsize=4096)  # kernels use some fifty
def _counts_as(word: str) -> tuple[str, ...]:
    return tuple(name for name, pattern in PATTERNS.items() if pattern.match(word))


def in_lines(text: str) -> str:
    """The text with a line feed at the end of each line, whatever ended it before, but for the last."""
    return "\n".join(text.splitlines())
