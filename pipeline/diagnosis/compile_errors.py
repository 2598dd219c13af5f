"""What the screen, the compiler and the audit say, by class: what it means and what mends it.

The classes are those that tests/diagnosis really provokes with the compiler; one that is not known is quoted as it
came. Errors of one class are one finding with all their lines. Not covered: what a right design would be.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kgen.diagnosis.api_modules import ROOT
from kgen.diagnosis.api_names import installed
from kgen.diagnosis.findings import COMPILE, Finding

LINE = re.compile(r"candidate\.py:(\d+)|^line (\d+):", re.MULTILINE)
QUOTED = 200  # characters of the telling line of a message
TELLING = re.compile(
    r"^.*(?:error\[|Error\b|error:|expects|does not|is not allowed|no attribute|bytes of|threads a block|ptxas .*:).*$",
    re.MULTILINE,
)
NO_ATTRIBUTE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
NEAREST = re.compile(r"nearest real names: ([\w., ]+)")
NAMES = 3  # near ones that are said of each
EMPTY = re.compile(r"DSL\w*Error:\s*$|CompilerDiagnosticError|Verification failed:\s*$|could not build valid IR")


@dataclass(frozen=True)
class Class:
    """`code` and `message` are searched in the gate's code and message; both must be found."""

    name: str
    code: str
    message: str
    means: str
    fix: str


CLASSES = (
    Class("syntax", r"^compile\.syntax", "", "Python cannot parse the file", "correct the line that is named"),
    Class(
        "forbidden-import",
        r"^screen\.import",
        "",
        "an import that candidates may not make",
        "import only cutlass, cuda.bindings.driver, math, functools and typing; no torch, no numpy",
    ),
    Class(
        "forbidden-name",
        r"^screen\.",
        "",
        "a name or statement that the screen refuses",
        "write the kernel without it: no files, no reflection, no dunders, no driver calls",
    ),
    Class(
        "unknown-attribute",
        r"^compile\.",
        "has no attribute",
        "this name does not exist in the installed compiler",
        "use a name from the guide; never guess names",
    ),
    Class(
        "unknown-name",
        r"^compile\.name",
        "",
        "a name is not defined here: unknown, or first set inside a staged branch",
        "set every variable, with its final type, before the if/for/while that changes it",
    ),
    Class(
        "early-exit",
        r"UNSUP_EARLY_EXIT",
        "",
        "return, break or continue under a run-time condition",
        "put the work inside one big `if`, or clamp the index and guard only the store",
    ),
    Class(
        "unstable-type",
        r"TYPE_UNSTABLE_JOIN|TYPE_CONDITIONAL",
        "",
        "a variable changes its type between paths or turns",
        "start it with its final type: Float32(0.0), not 0; convert with .to(T) on both sides",
    ),
    Class(
        "dynamic-index",
        r"PHASE_DYNAMIC_INDEX",
        "",
        "a Python list, tuple or range is indexed by a run-time value",
        "lists exist at trace time only: unroll with cutlass.range_constexpr, or keep the values in a register tensor",
    ),
    Class(
        "not-constant",
        r"ARG_NON_CONSTANT|PHASE_REQUIRES_CONSTANT",
        "",
        "a trace-time construct got a run-time value",
        "range_constexpr and const_expr need Python integers; for run-time values use cutlass.range and a plain if",
    ),
    Class(
        "not-launched",
        r"LAUNCH_NEVER_ISSUED",
        "",
        "a kernel was called and not launched",
        "add .launch(grid=[...], block=[...], stream=stream) to the call",
    ),
    Class(
        "host-arguments",
        r"CALL_MISSING_ARG|ARG_BIND_FAILED|CALL_KERNEL_TARGET",
        "",
        "the host function's parameters are not the op's",
        "take the op's tensors in the documented order, then the declared workspaces, then the stream",
    ),
    Class(
        "copy-size",
        r"^compile\.dsl",
        r"op expects same size",
        "both sides of a copy must have the same shape",
        "make the fragment as large as the tile: the same count in local_tile and make_rmem_tensor",
    ),
    Class(
        "alignment",
        r"^compile\.dsl",
        r"alignment .* does not\s+meet|alignment",
        "a wide access to a pointer not known to be aligned",
        "take vectors with local_tile(row, (8,), (i,)) of the op's tensors: offsets then are multiples of 16 bytes",
    ),
    Class(
        "arch",
        r"^compile\.",
        r"expects arch to be one of",
        "an instruction that this architecture does not have",
        "choose by `arch` in build(): no tcgen05 on sm_90a, no wgmma on sm_103a",
    ),
    Class(
        "layout",
        r"^compile\.dsl",
        r"congruent|rank|coordinate|Operation creation failed",
        "an index or tile does not fit the tensor's layout",
        "give as many coordinates as the tensor has modes; look at every index and local_tile",
    ),
    Class(
        "dtype",
        r"^compile\.dsl",
        r"Type mismatch|element type|dtype",
        "a value of another type than the tensor holds",
        "convert on every store: value.to(BFloat16)",
    ),
    Class(
        "bad-call",
        r"^compile\.dsl",
        r"unexpected keyword|positional argument|missing \d+ required",
        "a function does not take these arguments",
        "call it as the guide does",
    ),
    Class(
        "nvvm",
        r"^compile\.nvvm",
        "",
        "the device compiler has no such operation for these types or this architecture",
        "check types and constraints of inline PTX; fp4 and ue8m0 conversions do not exist on "
        "sm_90a: use integer tricks",
    ),
    Class(
        "ptxas",
        r"^compile\.ptxas",
        "",
        "the assembler refused an instruction",
        "check the inline PTX: opcode, types, semicolons, and what the architecture has",
    ),
    Class(
        "native-abort",
        r"^compile\.crash",
        "",
        "the compiler itself aborted",
        "most often a 128-bit copy atom on a tile that is no multiple of 16 bytes: change tile or atom",
    ),
    Class(
        "never-ends",
        r"^compile\.timeout",
        "",
        "the build did not end in its time",
        "look for a Python loop that never ends or unrolls too far: at most about 64 unrolled turns",
    ),
    Class(
        "out-of-memory",
        r"^compile\.memory",
        "",
        "the build took more memory than it may",
        "unroll less, build smaller tables",
    ),
    Class("recursion", r"^compile\.recursion", "", "a function calls itself without end", "write a loop"),
    Class("build-raised", r"^compile\.build", "", "build() raised", "handle the dims that the message names"),
    Class(
        "contract",
        r"^compile\.contract",
        "",
        "the file does not offer what kgen calls",
        "define build(dims, tokens, arch) that returns the @cute.jit host function, which launches a kernel",
    ),
    Class(
        "spill",
        r"^audit\.spill",
        "",
        "registers spill to local memory, or an array is indexed at run time",
        "index register arrays with constants only; fewer values in flight, smaller unroll",
    ),
    Class(
        "shared-memory",
        r"^audit\.smem",
        "",
        "more shared memory than a block has",
        "at most 232448 bytes: smaller tiles, fewer stages",
    ),
    Class(
        "wait",
        r"^audit\.wait",
        "",
        "blocks wait for others of their launch that may find no place beside them: it can hang",
        "cooperative=True in .launch, or no more blocks than are sure to run at once",
    ),
    Class("block-size", r"^audit\.block", "", "a block of too many threads", "at most 1024 threads a block"),
    Class(
        "workspace",
        r"^audit\.workspace",
        "",
        "a workspace is too large or of an unknown dtype",
        "at most 256 MiB together",
    ),
    Class("state", r"^audit\.state", "", "the kernel keeps device variables of its own", "declare a workspace instead"),
    Class(
        "audit",
        r"^audit\.",
        "",
        "the finished object does not hold what it may",
        "launch only kernels of this file, plainly",
    ),
)


def classify(code: str, message: str) -> Class | None:
    """The first class that fits, in the order of the table."""
    return next((c for c in CLASSES if re.search(c.code, code) and re.search(c.message, message)), None)


def findings(failures: Iterable[tuple[str, str]]) -> list[Finding]:
    """Of (code, message) pairs: one finding a class, with the lines of all its errors."""
    groups: dict[str, list[tuple[Class | None, str, str]]] = {}
    for code, message in failures:
        known = classify(code, message)
        groups.setdefault(known.name if known else code, []).append((known, code, message))
    return [_grouped(name, members) for name, members in groups.items()]


def _grouped(name: str, members: list[tuple[Class | None, str, str]]) -> Finding:
    known, _, message = members[0]
    lines = sorted({n for _, _, m in members for n in lines_of(m)})
    at = f" (candidate line {', '.join(map(str, lines[:8]))})" if lines else ""
    times = f", {len(members)} times" if len(members) > 1 else ""
    means = f"{known.means}{at}{times}: " if known else f"unknown class{at}{times}: "
    said = (
        "; ".join(dict.fromkeys(_named(m) or telling(m) for _, _, m in members)) if NO_ATTRIBUTE.search(message) else ""
    )
    detail = {"class": name, "lines": lines, "times": len(members)}
    return Finding(COMPILE, 0, name, means + (said or telling(message)), known.fix if known else "", detail)


def _named(message: str) -> str:
    """A module's name that does not exist, with the nearest real ones: those of the message, else of the package."""
    if not (match := NO_ATTRIBUTE.search(message)):
        return ""
    name = f"{match[1]}.{match[2]}"
    if told := NEAREST.search(message):
        near = told[1].split(", ")
    else:
        names = installed() if name.startswith(f"{ROOT}.") else None
        near = names.nearest_given(name) if names else []
    return f"there is no {name}" + (f", nearest: {', '.join(near[:NAMES])}" if near else "")


def lines_of(message: str) -> list[int]:
    """Lines of the candidate: the innermost one of a trace."""
    found = [int(a or b) for a, b in LINE.findall(message)]
    return found[-1:]


def telling(message: str) -> str:
    """The line of a message that says most."""
    lines = [m[0].strip() for m in TELLING.finditer(message) if not EMPTY.search(m[0])]
    chosen = lines[0] if lines else message.strip().splitlines()[0] if message.strip() else "no message"
    return " ".join(chosen.split())[:QUOTED]
