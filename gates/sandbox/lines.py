"""The conformance list as data: what is tried inside the sandbox, what must be seen, and which level promises what.

Every line is tried under two fences: as a `job` (a fork of the build server, where a candidate's Python runs) and as a
`tool` (a program that a gate starts in the sandbox: the C compiler on a candidate's object, the launch recorder).
`GAPS` names the lines that a level does not promise, and why; every other line is promised. The probes are the
functions of the same name in `probe_*.py`; `gates/builder/conformance.py` runs and judges them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

JOB, TOOL = "job", "tool"
FENCES = (JOB, TOOL)
CPU, WALL, FULL = "cpu", "wall", "full"  # why it was killed: CPU time, the deadline, too much said or left
LEFT_SECONDS = 1.0  # after a kill, until no process of it is left

INSTALL = "apt-get install bubblewrap"
SIGNALS = "apt-get install bubblewrap, or use a kernel whose Landlock confines signals (Linux 6.12 or newer)"
KERNEL = "use a kernel with Landlock and seccomp (Linux 5.13 or newer)"
OURS = "a defect of kgen: please report it with this table"


@dataclass(frozen=True)
class Line:
    """`ends`: how the probe must be killed, by fence; none: it ends by itself and must have got away with nothing.

    `gone`: besides, every process of it must be gone within `LEFT_SECONDS` of its end. `fix`: what to do when a
    promised line fails. `limits`: fields of `fence.Limits` other than the usual ones.
    """

    name: str
    tried: str
    seen: str
    fix: str = KERNEL
    ends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: bool = False
    fences: tuple[str, ...] = FENCES
    limits: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 20.0


def _killed(*how: str) -> Mapping[str, tuple[str, ...]]:
    return dict.fromkeys(FENCES, how)


LINES: tuple[Line, ...] = (
    Line(
        "endless-loop",
        "computes without end",
        "killed at the limit of CPU time",
        OURS,
        _killed(CPU),
        limits={"cpu_seconds": 1},
    ),
    Line("sleeping", "waits without end", "killed at the deadline", OURS, _killed(WALL), seconds=1.0),
    Line("fork-bomb", "starts processes without end", "a job: none; a tool: no more than its user may have", INSTALL),
    Line("threads", "starts threads without end", "no more than its user may have", INSTALL),
    Line("memory", "takes more address space than the limit", "refused", OURS),
    Line("disk", "fills its folder", "killed beyond 64 MiB", OURS, _killed(FULL)),
    Line("reserving", "reserves room without writing", "refused: gigabytes between two looks at the folder"),
    Line("deleted-files", "fills files that it deletes", "killed beyond 64 MiB", KERNEL, _killed(FULL)),
    Line("nameless-files", "makes files without a name, and in memory", "refused"),
    Line("many-files", "makes files without end", "killed beyond 256", OURS, _killed(FULL)),
    Line("file-size", "makes one large file", "refused", OURS),
    Line("open-files", "opens files without end", "refused beyond the limit", OURS),
    Line(
        "endless-output",
        "prints without end",
        "killed; what is kept is capped",
        OURS,
        {JOB: (FULL,), TOOL: (WALL,)},
        seconds=1.5,
    ),
    Line("descriptors", "looks for descriptors that it inherited", "none but 0, 1 and 2", OURS),
    Line("write-outside", "writes, makes, moves files everywhere", "nothing changed outside of its folder"),
    Line("other-jobs", "lists, reads, writes other jobs' folders", "refused", fences=(JOB,)),
    Line("home", "lists the home, reads files of its user", "nothing seen"),
    Line("environment", "looks for secrets in variables and in /proc", "nothing found"),
    Line("tcp", "connects and listens by TCP", "refused; nothing arrived"),
    Line("udp", "sends by UDP, opens raw, packet and netlink sockets", "refused; nothing arrived"),
    Line("dns", "asks name servers", "refused; nothing arrived"),
    Line("unix-socket", "connects to a socket file", "refused; nothing arrived"),
    Line("abstract-socket", "connects to an abstract socket", "refused; nothing arrived"),
    Line("signals", "signals its server and processes outside, in six ways", "refused; nothing arrived", SIGNALS),
    Line("others-limits", "reads and sets limits and priorities of others", "refused"),
    Line("ptrace", "traces others, reads their memory, takes descriptors", "refused"),
    Line("namespaces", "makes and enters namespaces, users' first", "refused"),
    Line("kernel-doors", "mounts, modules, clocks, keys, bpf, io_uring, ...", "refused before arguments are looked at"),
    Line("setuid", "changes user and groups, gives files away", "refused; no capability left"),
    Line("daemons", "leaves a process in a session of its own, and ends", "gone within 1 s", INSTALL, gone=True),
    Line(
        "leftovers",
        "many processes that want to stay, killed at the deadline",
        "gone within 1 s",
        INSTALL,
        _killed(WALL),
        True,
        seconds=1.0,
    ),
    Line("closing", "the same, when the builder is closed", "gone within 1 s", INSTALL, {}, True, (JOB,), seconds=1.0),
    Line(
        "judge-killed",
        "the same, when the judge's process is killed",
        "gone within 1 s",
        INSTALL,
        {},
        True,
        seconds=1.0,
    ),
)

DELETED = ((TOOL,), "a tool may delete files: open and deleted ones are bounded by number times size only (4 GiB)")
NO_PIDS = ((TOOL,), "no process namespace: what a tool has detached from itself lives on (a job can start nothing)")
UNCOUNTED = "processes and threads are counted where the sandbox has a user of its own: as root, or in a user namespace"
COUNTED = {"fork-bomb": (TOOL,), "threads": FENCES}  # not promised where they are not counted
# level -> line -> fences in which it is not promised, why
GAPS: Mapping[str, Mapping[str, tuple[tuple[str, ...], str]]] = {
    "bwrap": {"deleted-files": DELETED, "nameless-files": DELETED},
    "unshare": {"deleted-files": DELETED, "nameless-files": DELETED},
    "landlock": {
        "deleted-files": DELETED,
        "nameless-files": DELETED,
        "daemons": NO_PIDS,
        "leftovers": NO_PIDS,
        "judge-killed": NO_PIDS,
    },
}


def gap(level: str, counted: bool, line: str, fence: str) -> str:
    """Why a level does not promise a line under a fence; "" when it does. `counted`: see `Level.counts`."""
    if not counted and fence in COUNTED.get(line, ()):
        return UNCOUNTED
    fences, why = GAPS.get(level, {}).get(line, ((), ""))
    return why if fence in fences else ""


def table() -> str:
    """The list as a Markdown table: what each level promises, where processes are counted. For docs/sandbox.md."""
    head = ["line", "what is tried", "what must be seen", *GAPS]
    rows = [[f"`{line.name}`", line.tried, line.seen, *(_promise(level, line) for level in GAPS)] for line in LINES]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _promise(level: str, line: Line) -> str:
    kept = [fence for fence in line.fences if not gap(level, True, line.name, fence)]
    mark = " *" if line.name in COUNTED else ""
    return "both" + mark if len(kept) == len(FENCES) else " and ".join(kept) + mark
