"""`__main__` of the file that is carried: checks the machine, unpacks, and hands over to host.py.

Checks and unpacking are those of a kit (kit_boot.py lies beside this file in the archive). Refusals: one line, exit 3.
"""

import hashlib
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
        raw = zipped.read("faults.json")
    info = json.loads(raw.decode("utf-8"))
    check_machine(info)
    flavour = check_torch(info)
    digest = hashlib.sha256(raw).hexdigest()
    root = unpack(archive, info, digest, flavour, Path(tempfile.gettempdir()))
    sys.path[:] = [str(root / "lib")] + [p for p in sys.path if Path(p).absolute() != archive]
    os.environ["KGEN_CUTE_RUNTIME"] = str(root / "native" / flavour / "libcute_dsl_runtime.so")
    sys.dont_write_bytecode = True
    from runner_faults_host import main

    return main(sys.argv[1:], root, {**info, "digest": digest})


def run() -> int:
    try:
        return start(Path(__file__).absolute().parent)
    except Refusal as refusal:
        sys.stderr.write(f"runner-faults: {refusal}\n")
        return refusal.code
    except (zipfile.BadZipFile, lzma.LZMAError, KeyError) as error:
        sys.stderr.write(f"runner-faults: the file is damaged ({error}): make it again\n")
        return DAMAGED


if __name__ == "__main__":
    sys.exit(run())
