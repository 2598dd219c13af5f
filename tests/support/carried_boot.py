"""`__main__` of a file that carried.py writes: checks the machine, unpacks, and hands over to the host module.

Checks and unpacking are those of a kit (kit_boot.py lies beside this file in the archive). Refusals: one line, exit 3.
"""

import hashlib
import importlib
import json
import lzma
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from kit_boot import DAMAGED, Refusal, check_machine, check_torch, unpack


def start(archive: Path) -> int:
    with zipfile.ZipFile(str(archive)) as zipped:
        raw = zipped.read("carried.json")
    info = json.loads(raw.decode("utf-8"))
    check_machine(info)
    flavour = check_torch(info)
    digest = hashlib.sha256(raw).hexdigest()
    root = unpack(archive, info, digest, flavour, Path(tempfile.gettempdir()))
    sys.path[:] = [str(root / "lib")] + [p for p in sys.path if Path(p).absolute() != archive]
    os.environ["KGEN_CUTE_RUNTIME"] = str(root / "native" / flavour / "libcute_dsl_runtime.so")
    os.environ["KGEN_CACHE"] = str(root / "cache")
    sys.dont_write_bytecode = True
    host = importlib.import_module(info["host"])
    code: int = host.main(sys.argv[1:], root, {**info, "digest": digest}, [sys.executable, str(archive)])
    return code


def run() -> int:
    archive = Path(__file__).absolute().parent
    try:
        return start(archive)
    except Refusal as refusal:
        sys.stderr.write(f"{archive.name}: {refusal}\n")
        return refusal.code
    except (zipfile.BadZipFile, lzma.LZMAError, KeyError) as error:
        sys.stderr.write(f"{archive.name}: the file is damaged ({error}): make it again\n")
        return DAMAGED


if __name__ == "__main__":
    sys.exit(run())
