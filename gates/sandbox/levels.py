"""The isolation levels, strongest first, and the command line that each of them needs.

    bwrap     own mount, pid, ipc, uts and network namespaces; only the named folders exist; own user when root
    unshare   the same namespaces through util-linux, own user through setpriv, files fenced by Landlock
    landlock  files, TCP and signals fenced by Landlock, sockets by seccomp; pids of others stay visible
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

from kgen.gates.sandbox import fence

SANDBOX_UID = 65534  # nobody: RLIMIT_NPROC does not bind root, and nobody owns nothing worth reading
VERSION = 1
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
OWN_USER_PROCESSES = 512
TMP_BYTES = 64 << 20  # of memory: the jobs' own folder is elsewhere
PROBE_SECONDS = 20.0


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
        return self.name in ("bwrap", "unshare") and os.geteuid() == 0

    def prepare(self, folder: Path) -> None:
        """Make a folder writable for the sandboxed user, and for nobody else."""
        if self.own_user:
            os.chown(folder, SANDBOX_UID, SANDBOX_UID)
        folder.chmod(0o700)


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


def _limits(box: Box, own_user: bool) -> fence.Limits:
    return replace(box.limits, processes=OWN_USER_PROCESSES) if own_user else box.limits


def _setpriv(*extra: str) -> list[str]:
    program = shutil.which("setpriv")
    if program is None:
        raise FileNotFoundError("setpriv is not installed")
    return [program, f"--reuid={SANDBOX_UID}", f"--regid={SANDBOX_UID}", "--clear-groups", "--no-new-privs", *extra]


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
        raise FileNotFoundError("bwrap is not installed")
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
    policy = fence.Policy(limits=_limits(box, root), landlock=False, seccomp="tool")
    return out + (_setpriv("--bounding-set=-all") if root else []) + _fenced(box, argv, policy)


def _unshare(box: Box, argv: list[str]) -> list[str]:
    program = shutil.which("unshare")
    if program is None:
        raise FileNotFoundError("unshare is not installed")
    root = os.geteuid() == 0
    out = [program, "--net", "--pid", "--ipc", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc"]
    # the one capability kept lets the new user walk through private parent folders; Landlock still says what it reads
    keep = "-all,+dac_read_search"
    out += _setpriv(f"--bounding-set={keep}", f"--inh-caps={keep}", f"--ambient-caps={keep}") if root else []
    if not root:
        out[1:1] = ["--user", "--map-current-user"]
    policy = _landlock_policy(box, _limits(box, root), drop_capabilities=not root)
    return out + _fenced(box, argv, policy)


def _landlock_policy(box: Box, limits: fence.Limits, drop_capabilities: bool) -> fence.Policy:
    if fence.landlock_abi() < 1:
        raise fence.FenceError("this kernel has no Landlock")
    write = (str(box.write), *DEVICES)
    return fence.Policy(_readable(box), write, limits, seccomp="tool", drop_capabilities=drop_capabilities)


def _landlock(box: Box, argv: list[str]) -> list[str]:
    return _fenced(box, argv, _landlock_policy(box, box.limits, drop_capabilities=True))


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
    why = "; ".join(f"{name}: {reason}" for name, works, reason in available() if not works)
    raise NoSandboxError(
        f"no sandbox works here ({why}). Install bubblewrap (apt-get install bubblewrap), or use a kernel with Landlock"
        " (5.13 or newer); --unsafe-no-sandbox builds without one, and nothing built so can be promoted"
    )
