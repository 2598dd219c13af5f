"""Kernel sets for the plugin's tests: objects that are linked, loaded and called for real, on the CPU."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.sets import WIN, fill, make_case

from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.serve.runtime import package_folders
from kgen.store import SetPath

SUPPORT = Path(__file__).parent
OP = "moe_shared"
CONTRACT = REGISTRY.get(OP).contract_sha256()
BINS = (1, 8, 16)


def compiled(folder: Path) -> dict[str, bytes]:
    """`right` computes moe_shared at the small sizes; `wrong` gives other numbers in the right shapes."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("needs a C compiler")
    includes = [f"-I{each / 'include'}" for each in package_folders("tvm_ffi")]
    made = {}
    for name, source in (("right", "vllm_shared.c"), ("wrong", "negate.c")):
        out = folder / f"{name}.o"
        subprocess.run([cc, "-O3", "-fPIC", *includes, "-c", str(SUPPORT / source), "-o", str(out)], check=True)
        made[name] = out.read_bytes()
    return made


def make_set(root: Path, objects: Mapping[int, bytes], arch: str = "sm_90a", contract: str = CONTRACT) -> SetPath:
    """A set that holds these objects, by token bin."""
    case = make_case("kernel", dict.fromkeys(objects, WIN), op_contract=contract, objects=objects, arch=arch)
    return fill(root, case, current=Current({OP: contract}, 1))
