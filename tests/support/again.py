"""Runs the cases of a GPU again, and takes what came out into the record that is committed.

    python -m support.again exploits                  on a machine with a GPU: packs, runs the file, takes its result
    python -m support.again exploits pack FILE.pyz    for a GPU host without a checkout; there python3 FILE.pyz RESULT
    python -m support.again exploits take RESULT      what such a host wrote
    python -m support.again exploits index            makes the record's index anew, where it has one

Kinds: exploits, runner-faults, ptx-truth; `make exploits-gpu` and so on. The same file runs in both ways, so that what
is on record never depends on the checkout beside it. Exit: 0, or one line on stderr and 1. Not here: any verdict.
"""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kgen.gates.environment import device_arch
from kgen.gates.kit_wheels import HERE
from kgen.serve.runtime import torch_flavour

REFUSED = 3  # how a carried file ends where the machine lacks something; it has said what
USAGE = "usage: python -m support.again KIND [pack FILE.pyz | take RESULT | index]"


@dataclass(frozen=True)
class Kind:
    """`carry` writes the file for some Pythons and flavours of CUDA, and returns a line about it.

    `take` reads a result, writes the record, and returns why it is red or not taken, "" for neither.
    """

    name: str
    arch: str
    result: str
    carry: Callable[[Path, Sequence[str], Sequence[str]], str]
    take: Callable[[Sequence[str]], str]


FOLDERS = {"exploits": "exploits.gpu", "runner-faults": "runner_faults", "ptx-truth": "ptx_truth"}
RESULTS = {"exploits": "result.json.xz", "runner-faults": "result.json", "ptx-truth": "result.json.xz"}
INDEXED = ("exploits",)


def kind(name: str) -> Kind:
    pack, compare = (importlib.import_module(f"{FOLDERS[name]}.{part}") for part in ("pack", "compare"))
    return Kind(name, pack.ARCH, RESULTS[name], pack.carry, compare.main)


def without_gpu(one: Kind) -> str:
    """Why the cases cannot run here, "" where they can."""
    if not torch.cuda.is_available():
        lacks = "no CUDA GPU here"
    elif device_arch() != one.arch:
        lacks = f"the GPU here is {device_arch()}, the kernels are for {one.arch}"
    else:
        return ""
    make = f"make {one.name}-gpu GPU_ARGS="
    return (
        f"{lacks}; for a host with one: {make}'pack FILE.pyz', there python3 FILE.pyz RESULT, here {make}'take RESULT'"
    )


def again(one: Kind) -> str:
    """Pack, run, take. Returns what is wrong, "" for nothing."""
    with tempfile.TemporaryDirectory(prefix="kgen-again-") as name:
        packed, result = Path(name) / f"{one.name}.pyz", Path(name) / one.result
        sys.stdout.write(one.carry(packed, (HERE,), (torch_flavour(),)) + "\n")
        sys.stdout.flush()
        code = subprocess.run([sys.executable, str(packed), str(result)], check=False).returncode
        if code == REFUSED or not result.exists():
            return f"the file ended with status {code} and left no result: nothing is taken"
        return one.take([str(result)])


def main(arguments: Sequence[str]) -> str:
    name, *rest = arguments or ("",)
    if name not in FOLDERS:
        return f"{USAGE}; kinds: {', '.join(FOLDERS)}"
    one = kind(name)
    if not rest:
        return without_gpu(one) or again(one)
    if rest[0] == "pack" and len(rest) == 2:
        sys.stdout.write(one.carry(Path(rest[1]), *carried()) + "\n")
        return ""
    if rest[0] == "take" and len(rest) == 2:
        return one.take(rest[1:]) if Path(rest[1]).is_file() else f"{rest[1]}: there is no such file"
    if rest == ["index"] and name in INDEXED:
        return one.take(())
    return USAGE


def carried() -> tuple[Sequence[str], Sequence[str]]:
    from support.carried import FLAVOURS, PYTHONS

    return PYTHONS, FLAVOURS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
