"""Kernel sets with objects that are linked, loaded and called for real, and a server beside which they are used."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.sets import WIN, fill, make_case
from support.vllm_engine import Engine, host
from support.vllm_standin import install

import kgen.serve.vllm
from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.serve.runtime import package_folders
from kgen.serve.vllm import plan as planning
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


def prepared(monkeypatch: pytest.MonkeyPatch, folder: Path, cache: Path) -> Engine:
    """Beside a stand-in of vLLM with the plugin registered, on a machine that claims to be an H200."""
    for name in ("KGEN_SET", "KGEN_DISABLE", "VLLM_BATCH_INVARIANT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KGEN_CACHE", str(cache))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    install(monkeypatch, folder)
    made = Engine()
    monkeypatch.setattr(planning, "serving", lambda: host(made))
    monkeypatch.setattr(sys.modules["kgen.serve.load"], "device_capability", lambda: "sm_90")
    kgen.serve.vllm.register()
    assert kgen.serve.vllm.status().startswith("registered")
    return made


def settings(target: SetPath, **more: Any) -> dict[str, Any]:
    return {"set": str(target.path), "record": str(target.path.parent / "record.json"), **more}
