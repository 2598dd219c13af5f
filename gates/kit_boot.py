"""`__main__` of a kit: checks the machine, unpacks once into a private folder, and hands over to kit_host.py.

Standard library only, and syntax that old Pythons read too: they get the one line that says what is wrong. Every
refusal is one line on stderr and exit code 3 (the machine lacks something) or 5 (the kit is damaged).
"""

import hashlib
import importlib
import json
import lzma
import os
import platform
import shutil
import stat
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any, Dict, List

# ruff: noqa: UP006, UP035 - the oldest Pythons that should get a refusal know no dict[...]
MISSING, DAMAGED = 3, 5
MARK = "unpacked"
Table = Dict[str, Any]
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Refusal(Exception):
    def __init__(self, text: str, code: int = MISSING) -> None:
        super().__init__(text)
        self.code = code


def check_machine(info: Table) -> None:
    if HERE not in info["pythons"]:
        raise Refusal(f"needs Python {', '.join(info['pythons'])}, this is {HERE}")
    if sys.platform != "linux" or platform.machine() != info["machine"]:
        raise Refusal(f"made for linux {info['machine']}, this is {sys.platform} {platform.machine()}")
    if not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")):
        raise Refusal("no C compiler to link the kernels: install gcc (cc) and try again")


def check_torch(info: Table) -> str:
    """The CUDA flavour that the torch of this machine needs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a torch without numpy says so: not what a refusal is about
            import torch
    except ImportError as error:
        raise Refusal(f"no torch here ({error}): install torch >= {info['torch']}") from None
    have = [int("".join(c for c in n if c.isdigit()) or 0) for n in torch.__version__.split("+")[0].split(".")[:2]]
    if have < [int(n) for n in info["torch"].split(".")]:
        raise Refusal(f"needs torch >= {info['torch']}, this is {torch.__version__}")
    if not torch.version.cuda:
        raise Refusal(f"no CUDA GPU can be used: the torch here ({torch.__version__}) is built without CUDA")
    flavour = "cu" + torch.version.cuda.split(".")[0]
    if flavour not in info["flavours"]:
        raise Refusal(f"the torch here is for CUDA {torch.version.cuda}, the kit for {', '.join(info['flavours'])}")
    if not torch.cuda.is_available():
        raise Refusal("no CUDA GPU here")
    major, minor = torch.cuda.get_device_capability()
    if f"sm_{major}{minor}" not in [arch.rstrip("af") for arch in info["archs"]]:
        raise Refusal(f"this GPU is sm_{major}{minor}, the kernels are for {', '.join(info['archs'])}")
    return flavour


def wanted_files(info: Table, flavour: str) -> List[Table]:
    return [f for f in info["files"] if f["python"] in ("", HERE) and f["flavour"] in ("", flavour)]


def sound(root: Path, files: List[Table]) -> bool:
    """Whether `root` is our own private folder and holds these files unaltered."""
    try:
        status = root.lstat()
        private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
        if not private or status.st_uid != os.geteuid() or not (root / MARK).exists():
            return False
        return all(hashlib.sha256((root / f["path"]).read_bytes()).hexdigest() == f["sha256"] for f in files)
    except OSError:
        return False


def unpack(archive: Path, info: Table, digest: str, flavour: str, base: Path) -> Path:
    """The folder that holds the kit's files; unpacked there before, or now."""
    files = wanted_files(info, flavour)
    root = base / f"kgen-kit-{os.geteuid()}-{digest[:16]}-{flavour}-py{HERE}"
    if sound(root, files):
        return root
    fresh = Path(tempfile.mkdtemp(prefix="kgen-kit-", dir=str(base)))
    with zipfile.ZipFile(str(archive)) as zipped:
        for f in files:
            data = zipped.read("blobs/" + f["blob"])
            data = lzma.decompress(data) if f["xz"] else data
            if hashlib.sha256(data).hexdigest() != f["sha256"]:
                raise Refusal(f"{f['path']} is damaged inside the kit: get it again", DAMAGED)
            path = fresh / f["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (fresh / MARK).touch()
    try:
        if not root.is_symlink() and root.lstat().st_uid == os.geteuid():
            shutil.rmtree(str(root), ignore_errors=True)  # our own, but not whole any more
    except OSError:
        pass  # there is none: the usual case
    try:
        fresh.rename(root)
        return root
    except OSError:  # another process was faster, or the name is taken by something that is not ours: stay here
        return fresh


def start(archive: Path) -> int:
    """Check, unpack, run. Returns the exit code."""
    with zipfile.ZipFile(str(archive)) as zipped:
        raw = zipped.read("kit.json")
    info = json.loads(raw.decode("utf-8"))
    if "--help" in sys.argv or "-h" in sys.argv:
        sys.stdout.write(info["help"])
        return 0
    check_machine(info)
    flavour = check_torch(info)
    root = unpack(archive, info, hashlib.sha256(raw).hexdigest(), flavour, Path(tempfile.gettempdir()))
    sys.path[:] = [str(root / "lib")] + [p for p in sys.path if Path(p).absolute() != archive]
    os.environ["KGEN_CUTE_RUNTIME"] = str(root / "native" / flavour / "libcute_dsl_runtime.so")
    os.environ["KGEN_CACHE"] = str(root / "cache")
    sys.dont_write_bytecode = True
    entry = importlib.import_module(info.get("entry", "kgen.gates.kit_host"))
    code: int = entry.main(sys.argv[1:], str(root), info)
    return code


def main() -> int:
    try:
        return start(Path(__file__).absolute().parent)
    except Refusal as refusal:
        sys.stderr.write(f"kgen kit: {refusal}\n")
        return refusal.code
    except (zipfile.BadZipFile, lzma.LZMAError, KeyError) as error:
        sys.stderr.write(f"kgen kit: the file is damaged ({error}): get it again\n")
        return DAMAGED
    except OSError as error:
        sys.stderr.write(f"kgen kit: {error.filename or ''}: {error.strerror or error}\n")
        return MISSING


if __name__ == "__main__":
    sys.exit(main())
