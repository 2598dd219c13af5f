"""Hostile candidates against the real builder, on every isolation level that works here.

They are given to the builder directly: the screen would refuse all of them by their imports.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgen.gates.audit import object as objects
from kgen.gates.audit.object import AuditError
from kgen.gates.builder.outcome import BuildFailure, Built
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import Signature
from kgen.gates.sandbox import LEVELS, NONE, Limits, available

ATTACKS = Path(__file__).parent / "candidates" / "attacks"
LIMITS = Limits(cpu_seconds=2)
SIGNATURE = Signature(
    dims={"width": 128}, tokens=1, arch="sm_90a", tensors=(("Float32", (128,)),), scalars=(), names=("y",), first_out=0
)
WORKS = {name: why for name, works, why in available()}
# attack -> code; "": the attack reports that it was refused
EXPECTED = {
    "infinite_loop": "compile.timeout",
    "fork_bomb": "",
    "memory_hog": "compile.memory",
    "write_outside": "",
    "network": "",
    "secrets": "",
    "segfault": "compile.crash.SIGSEGV",
    "endless_output": "compile.output",
    "fill_disk": "compile.output",
    "other_jobs": "",
    "signal_others": "",
    "linked_result": "compile.output",
    "new_namespace": "",
}
GOOD = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def kernel(y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = cutlass.Float32(1.0)


@cute.jit
def host(y: cute.Tensor, stream: cuda.CUstream):
    kernel(y).launch(grid=[1, 1, 1], block=[128, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
"""


def attack(name: str) -> str:
    return (ATTACKS / f"{name}.py").read_text()


@pytest.fixture(scope="module", params=list(LEVELS))
def builder(request: pytest.FixtureRequest) -> Iterator[Builder]:
    if WORKS[request.param]:
        pytest.skip(f"{request.param} does not work here: {WORKS[request.param]}")
    os.environ["KGEN_TEST_API_KEY"] = "sk-not-for-candidates"
    try:
        with Builder(LEVELS[request.param], LIMITS, wall_seconds=30) as made:
            yield made
    finally:
        del os.environ["KGEN_TEST_API_KEY"]


def test_every_attack_has_an_expectation() -> None:
    assert {path.stem for path in ATTACKS.glob("*.py")} == set(EXPECTED) | {"forged_answer"}


@pytest.mark.parametrize("name", list(EXPECTED))
def test_an_attack_does_not_get_away(builder: Builder, name: str) -> None:
    processes = _processes()
    got = builder.build(attack(name), SIGNATURE)
    assert isinstance(got, BuildFailure)
    assert got.code == (EXPECTED[name] or "compile.build"), got.message
    report = (got.message.splitlines() or [""])[-1]  # the attack's own words; the lines above quote its source
    assert "ESCAPED" not in report
    assert EXPECTED[name] or "refused" in report
    _settle(processes)


@pytest.fixture(scope="module")
def bare() -> Iterator[Builder]:
    with Builder(NONE, LIMITS, wall_seconds=30) as made:
        yield made


@pytest.mark.parametrize("name", ["network", "secrets", "other_jobs"])
def test_without_a_fence_the_harmless_attacks_succeed(name: str, bare: Builder) -> None:
    """Else they would prove nothing."""
    got = bare.build(attack(name), SIGNATURE)
    assert isinstance(got, BuildFailure)
    assert "ESCAPED" in got.message.splitlines()[-1]


def test_the_server_survives_all_attacks(builder: Builder) -> None:
    before = builder.starts
    for name in ("segfault", "signal_others", "forged_answer"):
        builder.build(attack(name), SIGNATURE)
    assert isinstance(builder.build(GOOD, SIGNATURE), Built)
    assert builder.starts == max(before, 1)


def test_a_forged_object_is_refused_by_the_audit(builder: Builder) -> None:
    got = builder.build(attack("forged_answer"), SIGNATURE)
    assert isinstance(got, Built), "a candidate can forge what its own job leaves"
    with pytest.raises(AuditError, match="cannot be read"):
        objects.check(got.object, "sm_90a")


def test_jobs_leave_nothing_behind(builder: Builder) -> None:
    builder.build(GOOD, SIGNATURE)
    builder.build(attack("write_outside"), SIGNATURE)
    left = [p for p in builder.root.iterdir() if not p.name.startswith("home-")]
    assert left == []
    assert not list(Path("/tmp").glob("kgen-escape*"))


def _processes() -> int:
    done = subprocess.run(["ps", "-e", "--no-headers"], capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())


def _settle(before: int) -> None:
    """No flood of processes is left; other things on this machine may start and stop a few."""
    deadline = time.monotonic() + 5
    while _processes() > before + 50 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _processes() <= before + 50
