"""A layer with promoted objects in its seats, loaded as serving loads them: C with a kernel's calling convention."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.sets import ARCH, WIN, fill, make_case

from kgen.gates.layer.check import Refused
from kgen.gates.layer.markdown import markdown
from kgen.gates.layer.measure import measure
from kgen.gates.layer.points import ANY_CONTEXT, Job, Point
from kgen.gates.layer.record import LayerRecord, Measured
from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.serve.runtime import package_folders

ROWS = 2
SUPPORT = Path(__file__).parent / "support"


@pytest.fixture(autouse=True)
def as_if_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine claims to hold a device of the kernel's arch; the kernel itself runs on the CPU."""
    monkeypatch.setattr(sys.modules["kgen.serve.load"], "device_capability", lambda: ARCH.rstrip("a"))
    monkeypatch.setenv("KGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KGEN_DISABLE", raising=False)


def with_kernel(tmp_path: Path, op: str, source: str) -> Measured:
    """A layer measured with this source as the promoted kernel of an op."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    out = tmp_path / "kernel.o"
    includes = [f"-I{folder / 'include'}" for folder in package_folders("tvm_ffi")]
    subprocess.run(["cc", "-O2", "-fPIC", "-c", *includes, "-o", str(out), str(SUPPORT / source)], check=True)
    contract = REGISTRY.get(op).contract_sha256()
    case = make_case(source, {ROWS: WIN}, op=op, op_contract=contract, objects={ROWS: out.read_bytes()})
    place = fill(tmp_path / "set", case, current=Current({op: contract}, 1))
    point = Point("nano", "kda", ROWS, ANY_CONTEXT)
    job = Job(point, device="cpu", arch=ARCH, kernels=str(place.path), repetitions=2, each=True)
    return measure(job, REGISTRY)


def test_a_promoted_kernel_sits_in_its_seat_is_timed_and_can_be_left_out(tmp_path: Path) -> None:
    got = with_kernel(tmp_path, "oproj_partial", "projection_cpu.c")
    served = [p for p in got.parts if p.path == "promoted"]
    assert [(p.op, p.seat, p.reason) for p in served] == [("oproj_partial", "layers.1.oproj", "")]
    assert len(served[0].candidate) == 64
    assert [s.name for s in got.sides][-1] == "without_oproj_partial"
    assert {s.name for s in got.switches} == {"no_overlap", "no_promoted", "without_oproj_partial"}
    assert 0.9 < got.ratios["chain"]["delta"] < 1.1 and got.ratios["unfused"]["delta"] == 1.0
    page = markdown(LayerRecord((got,)))
    assert f"| oproj | oproj_partial | {served[0].candidate[:12]} |" in page
    assert "without the kernel of oproj_partial" in page
    assert "oproj_partial" not in next(line for line in page.splitlines() if line.startswith("No kernel is promoted"))


def test_a_promoted_kernel_that_is_wrong_in_the_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="chain: shared is"):
        with_kernel(tmp_path, "moe_shared", "negate.c")
