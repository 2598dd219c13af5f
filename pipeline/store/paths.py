"""Where kgen keeps things: the kernel set, the runs, the cache.

A checkout keeps its own `generated_kernels/` and `runs/`; elsewhere a user data folder (XDG) is used. An explicit
path wins over KGEN_SET / KGEN_RUNS / KGEN_CACHE, which win over both. The packaged set is the read-only `builtin`.
"""

import importlib.util
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kgen.store.errors import StoreError

BUILTIN = "builtin"
SET_FOLDER = "generated_kernels"
RUNS_FOLDER = "runs"


@dataclass(frozen=True)
class SetPath:
    """A kernel set's folder. `writable` is what was asked for, not what the file system allows."""

    path: Path
    writable: bool = True

    def require_writable(self) -> Path:
        """The path; raises StoreError for the packaged set."""
        if not self.writable:
            raise StoreError(self.path, f"the packaged set {self.path} is read-only; choose another with --set")
        return self.path


def is_checkout(folder: Path) -> bool:
    """Whether `folder` is the root of a kgen source tree."""
    if not (folder / SET_FOLDER).is_dir() or not (folder / "pipeline").is_dir():
        return False
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(project.get("project", {}).get("name") == "kgen")


def checkout(start: Path) -> Path | None:
    """The source tree that `start` lies in."""
    return next((folder for folder in (start, *start.parents) if is_checkout(folder)), None)


def package_checkout() -> Path | None:
    """The source tree that this very package runs from (editable install), else None."""
    root = Path(__file__).resolve().parents[2]
    return root if is_checkout(root) else None


def builtin_set() -> SetPath:
    """The packaged set. A path that does not exist when the package carries none."""
    spec = importlib.util.find_spec("kgen.generated_kernels")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return SetPath(Path(folders[0] if folders else SET_FOLDER), writable=False)


def _user(kind: str, fallback: str, env: Mapping[str, str]) -> Path:
    """An XDG folder of the user. The specification says that relative values are to be ignored."""
    base = env.get(kind, "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / fallback) / "kgen"


def _default(explicit: str | Path | None, variable: str, name: str, cwd: Path | None, env: Mapping[str, str]) -> Path:
    chosen = str(explicit or "") or env.get(variable, "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    root = checkout(cwd or Path.cwd())
    return root / name if root else _user("XDG_DATA_HOME", ".local/share", env) / name


def set_path(
    explicit: str | Path | None = None, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> SetPath:
    """The set that commands read and write. `explicit` or KGEN_SET may be a path or `builtin`."""
    env = os.environ if env is None else env
    if (str(explicit or "") or env.get("KGEN_SET", "")) == BUILTIN:
        return builtin_set()
    return SetPath(_default(explicit, "KGEN_SET", SET_FOLDER, cwd, env))


def serving_sets(explicit: str | Path | None = None, env: Mapping[str, str] | None = None) -> tuple[SetPath, ...]:
    """The sets that a serving process looks into, first hit wins.

    Without an explicit choice: the source tree that the package runs from, else the user's set, then the packaged
    one. The working folder is not looked at: a server must not load machine code because of where it was started.
    """
    env = os.environ if env is None else env
    if str(explicit or "") or env.get("KGEN_SET", ""):
        return (set_path(explicit, env=env),)
    root = package_checkout()
    own = root / SET_FOLDER if root else _user("XDG_DATA_HOME", ".local/share", env) / SET_FOLDER
    builtin = builtin_set()
    return (SetPath(own),) if own.resolve() == builtin.path.resolve() else (SetPath(own), builtin)


def runs_path(
    explicit: str | Path | None = None, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Path:
    """The folder that holds the run folders."""
    return _default(explicit, "KGEN_RUNS", RUNS_FOLDER, cwd, os.environ if env is None else env)


def cache_path(env: Mapping[str, str] | None = None) -> Path:
    """The cache folder: everything in it can be made again."""
    env = os.environ if env is None else env
    chosen = env.get("KGEN_CACHE", "")
    return Path(chosen).expanduser().absolute() if chosen else _user("XDG_CACHE_HOME", ".cache", env)
