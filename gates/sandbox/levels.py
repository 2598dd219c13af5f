"""The isolation levels, strongest first, and the command line that each of them needs.

    bwrap     own mount, pid, ipc, uts and network namespaces; only the named folders exist; own user when root
    unshare   the same namespaces through util-linux, own user through setpriv, files fenced by Landlock
    landlock  files, TCP and signals fenced by Landlock, sockets by seccomp, own user when root; pids of others stay
              visible, and what a program detaches from itself outlives it
    none      no fence at all: only on explicit request, recorded, never promotable

Every level but none also puts `fence.py` round the command (limits, no_new_privs, seccomp). Not covered: a GPU inside
the sandbox (nothing here needs one), and limits on the sum over all processes of a job.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kgen.gates.sandbox import fence

NOBODY = 65534
FIRST_UID = 1_879_048_192  # from here to 2**31 no system hands out users; a process number is less than 2**22
UID_MAP = Path("/proc/self/uid_map")
VERSION = 2
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
OWN_USER_PROCESSES = 512
JOB_PROCESSES = 384  # threads count: a job leaves the server of its user some to fork others with
TMP_BYTES = 64 << 20  # of memory: the jobs' own folder is elsewhere
PROBE_SECONDS = 20.0
MISSING = "is not installed"
PACKAGES = {"bwrap": "bubblewrap", "unshare": "util-linux", "setpriv": "util-linux"}  # program -> Debian's package
CAP_DAC_READ_SEARCH = 1 << 2


class NoSandboxError(RuntimeError):
    """No isolation level works here; the message names the fix."""


@dataclass(frozen=True)
class Box:
    """What a sandboxed command may see: read-only paths, one writable folder, its whole environment."""

    write: Path
    read: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limits: fence.Limits = field(default_factory=fence.Limits)


@dataclass(frozen=True)
class Level:
    name: str
    wrap: Callable[[Box, list[str]], list[str]]

    @property
    def label(self) -> str:
        """As build records name it, e.g. `bwrap/1`; `none` has no version."""
        return self.name if self.name == "none" else f"{self.name}/{VERSION}"

    @property
    def own_user(self) -> bool:
        """Whether the command runs under another uid than ours, so that its folder must be handed over."""
        return os.geteuid() == 0 and (
            self.name in ("bwrap", "unshare") or (self.name == "landlock" and can_drop_user())
        )

    @property
    def counts(self) -> bool:
        """Whether processes and threads are counted for the sandbox's own user, and so limited."""
        return self.own_user or (self.name in ("bwrap", "unshare") and os.geteuid() != 0)

    @property
    def keeps(self) -> int:
        """Capabilities left inside, as a mask: where files stay in place, our user walks through private folders."""
        return CAP_DAC_READ_SEARCH if self.name in ("unshare", "landlock") and self.own_user else 0

    def job_limits(self, limits: fence.Limits) -> fence.Limits:
        """The limits of one job of the build server."""
        return replace(limits, processes=JOB_PROCESSES) if self.counts else limits

    def job_policy(self) -> dict[str, Any]:
        """The parts of `fence.Policy` that a job of the build server gets, inside of the level's own fence."""
        if self.name == "none":
            return {"landlock": False, "seccomp": ""}
        return {"landlock": fence.landlock_abi() > 0, "seccomp": "job", "drop_capabilities": not self.keeps}

    def prepare(self, folder: Path) -> None:
        """Make a folder writable for the sandboxed user, and for nobody else."""
        if self.own_user:
            os.chown(folder, sandbox_uid(), sandbox_uid())
        folder.chmod(0o700)


@functools.cache  # a fork keeps the user of the servers that it inherits
def sandbox_uid() -> int:
    """The user inside, when root starts the sandbox: one of this process's own, who owns nothing worth reading.

    RLIMIT_NPROC does not bind root, and counts by user: with one user for all, a fork bomb in one sandbox would take
    the processes of the others. Where this user namespace has no such users: nobody.
    """
    wanted = FIRST_UID + os.getpid()
    try:
        spans = [[int(n) for n in line.split()] for line in UID_MAP.read_text(encoding="ascii").splitlines()]
    except OSError:
        return NOBODY
    return wanted if any(first <= wanted < first + count for first, _, count in spans) else NOBODY


def python_paths() -> tuple[str, ...]:
    """What a Python inside needs to see of this one: prefixes, and the folders of packages outside them."""
    found = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent.parent)}
    found |= {str(Path(p).resolve()) for p in tuple(found)}
    return tuple(sorted(p for p in found if p not in ("/", "/usr") and Path(p).is_dir()))


def _fenced(box: Box, argv: list[str], policy: fence.Policy) -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(fence.__file__).resolve()), fence.encode(policy), *argv]


def _readable(box: Box) -> tuple[str, ...]:
    here = str(Path(fence.__file__).resolve().parent)
    return tuple(dict.fromkeys((*SYSTEM, *python_paths(), here, *box.read)))


def _counted(box: Box) -> fence.Limits:
    """As root the sandbox has a user of its own, else a user namespace of its own: only its processes count."""
    return replace(box.limits, processes=OWN_USER_PROCESSES)


def _setpriv_program() -> list[str]:
    program = shutil.which("setpriv")
    if program is None:
        raise FileNotFoundError(f"setpriv {MISSING}")
    return [program]


def _setpriv(*extra: str) -> list[str]:
    user = [f"--reuid={sandbox_uid()}", f"--regid={sandbox_uid()}", "--clear-groups", "--no-new-privs"]
    return [*_setpriv_program(), *user, *extra]


def _outermost(paths: tuple[str, ...]) -> list[str]:
    """Existing paths without those that lie inside another one, parents first."""
    kept: list[str] = []
    for path in sorted({str(Path(p)) for p in paths if Path(p).exists()}, key=lambda p: p.count("/")):
        if not any(path == k or path.startswith(k + "/") for k in kept):
            kept.append(path)
    return kept


def _bwrap(box: Box, argv: list[str]) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError(f"bwrap {MISSING}")
    root = os.geteuid() == 0
    write = str(box.write)
    binds = _outermost(_readable(box))
    out = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    out += ["--die-with-parent", "--new-session"]
    out += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]
    parents = {str(p) for path in (*binds, write) for p in Path(path).parents}
    for parent in sorted(parents - {"/", "/tmp"}, key=lambda p: p.count("/")):
        if not any(parent == b or parent.startswith(b + "/") for b in binds):
            out += ["--perms", "0755", "--dir", parent]  # else 0700: closed to the user that we drop to
    for path in binds:
        out += ["--ro-bind", path, path]
    out += ["--proc", "/proc", "--dev", "/dev", "--bind", write, write, "--remount-ro", "/", "--chdir", write, "--"]
    policy = fence.Policy(limits=_counted(box), landlock=False, seccomp="tool")
    return out + (_setpriv("--bounding-set=-all") if root else []) + _fenced(box, argv, policy)


def _unshare(box: Box, argv: list[str]) -> list[str]:
    program = shutil.which("unshare")
    if program is None:
        raise FileNotFoundError(f"unshare {MISSING}")
    root = os.geteuid() == 0
    out = [program, "--net", "--pid", "--ipc", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc"]
    out += _reading_user() if root else []
    if not root:
        out[1:1] = ["--user", "--map-current-user"]
    # --kill-child ends what is inside when `unshare` ends, and this ends `unshare` when we do
    out = [*_setpriv_program(), "--pdeathsig", "KILL", *out]
    policy = _landlock_policy(box, _counted(box), drop_capabilities=not root)
    return out + _fenced(box, argv, policy)


def _reading_user() -> list[str]:
    """Another user, who keeps one capability: to walk through private folders. Landlock still says what it reads."""
    keep = "-all,+dac_read_search"
    return _setpriv(f"--bounding-set={keep}", f"--inh-caps={keep}", f"--ambient-caps={keep}")


@functools.cache
def can_drop_user() -> bool:
    """Whether root may become the sandbox's user here; not in a user namespace without that user."""
    try:
        done = subprocess.run([*_reading_user(), "/bin/true"], capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _landlock_policy(box: Box, limits: fence.Limits, drop_capabilities: bool) -> fence.Policy:
    if fence.landlock_abi() < 1:
        raise fence.FenceError("this kernel has no Landlock")
    write = (str(box.write), *DEVICES)
    return fence.Policy(_readable(box), write, limits, seccomp="tool", drop_capabilities=drop_capabilities)


def _landlock(box: Box, argv: list[str]) -> list[str]:
    own = LEVELS["landlock"].own_user
    policy = _landlock_policy(box, _counted(box) if own else box.limits, drop_capabilities=not own)
    return (_reading_user() if own else []) + _fenced(box, argv, policy)


def _none(box: Box, argv: list[str]) -> list[str]:
    return argv


LEVELS: Mapping[str, Level] = {
    level.name: level for level in (Level("bwrap", _bwrap), Level("unshare", _unshare), Level("landlock", _landlock))
}
NONE = Level("none", _none)


@functools.cache
def probe(name: str) -> str:
    """ "" when the level works here, else why not (one line). Runs a trivial command in it once per process."""
    level = LEVELS[name]
    with tempfile.TemporaryDirectory(prefix="kgen-probe-") as folder:
        write = Path(folder)
        try:
            level.prepare(write)
            argv = level.wrap(Box(write, env={}), ["/bin/sh", "-c", f"echo ok > {folder}/ok"])
            done = subprocess.run(argv, env={}, cwd=folder, capture_output=True, timeout=PROBE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode == 0 and (write / "ok").is_file():
            return ""
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"


def available() -> list[tuple[str, bool, str]]:
    """(level, works here, why not) for every level, strongest first."""
    return [(name, not (why := probe(name)), why) for name in LEVELS]


def choose(preferred: str | None = None, unsafe_no_sandbox: bool = False) -> Level:
    """The strongest level that works here, or the preferred one. Raises NoSandboxError, naming the fix."""
    if preferred is not None and preferred not in LEVELS:
        raise ValueError(f"unknown isolation level {preferred!r}; levels: {', '.join(LEVELS)}")
    for name in LEVELS if preferred is None else (preferred,):
        if not probe(name):
            return LEVELS[name]
    if unsafe_no_sandbox:
        return NONE
    why = {name: reason for name, works, reason in available() if not works}
    said = "; ".join(f"{name}: {reason}" for name, reason in why.items())
    raise NoSandboxError(
        f"no sandbox works here ({said}). {advice(why)}; --unsafe-no-sandbox builds without one, and nothing built so"
        " can be promoted"
    )


def advice(why: Mapping[str, str]) -> str:
    """What helps, by what keeps the levels from working: packages to install, and what the kernel must allow."""
    packages = dict.fromkeys(
        PACKAGES[p] for p in PACKAGES if any(f"{p} {MISSING}" in reason for reason in why.values())
    )
    out = [f"Install {' and '.join(packages)} (apt-get install {' '.join(packages)})"] if packages else []
    if any("bwrap" in name and MISSING not in reason for name, reason in why.items()):
        out.append(
            "Allow bubblewrap to make user namespaces (sysctl user.max_user_namespaces, on Debian"
            " kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    return ". Or: ".join([*out, "Use a kernel with Landlock (Linux 5.13 or newer, lsm=landlock)"])
