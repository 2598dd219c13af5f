"""Broken candidates through the real compiler: each kind of failure has its stable code and a usable message."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgen.gates.builder.outcome import BuildFailure, Built, clean
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import Signature
from kgen.gates.compile import CompileGate, CompileReport
from kgen.gates.sandbox import Limits
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin, Status

OP = REGISTRY.get("moe_shared")
PROBLEM = OP.problem("nano", 1, "sm_90a")
SOURCE = (Path(__file__).parent / "candidates" / "row_copy.py").read_text()
STORE = "    y[b, t] = m[b, t]\n"
LAUNCH = "    kernel(m, w, d, y).launch(grid=[m.shape[0], 1, 1], block=[128, 1, 1], stream=stream)\n"
BUILD = "    return host\n"
ATOM = "cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), BFloat16, num_bits_per_copy=128)"
SPILL = """    r = cute.make_rmem_tensor((64,), Float32)
    for i in cutlass.range_constexpr(64):
        r[i] = m[0, i].to(Float32)
    v = Float32(0.0)
    for i in cutlass.range(t):
        v += r[(i * 7) % 64]
    y[0, t] = v.to(BFloat16)
"""
SMEM = """    smem = cutlass.memory.SmemAllocator()
    x = smem.allocate_tensor(Float32, cute.make_layout((70000,)), byte_alignment=16)
    x[t] = Float32(1.0)
    y[0, t] = x[0].to(BFloat16)
"""
HIDDEN = "    cute.arch.inline_ptx('{{ .global .align 4 .u32 kept; st.global.u32 [kept], 1; }}')\n"
WORKSPACES = "\n\ndef workspaces(dims, tokens, arch):\n    return {}\n"

# name -> (what is replaced, by what, code, words of the message)
BROKEN = {
    "syntax": (STORE, "    if t == 0\n        pass\n", "compile.syntax", "line 13"),
    "unknown name": (STORE, "    y[b, t] = nowhere\n", "compile.name", "nowhere"),
    "unknown attribute": (STORE, "    y[b, t] = cute.arch.warp_sum(m[b, t])\n", "compile.name", "warp_sum"),
    "early exit": (STORE, "    if t > 3:\n        return\n" + STORE, "compile.dsl.UNSUP_EARLY_EXIT", "candidate.py:1"),
    "unstable type": (
        STORE,
        "    x = 0\n    for i in range(t):\n        x += 1.5\n" + STORE,
        "compile.dsl.TYPE_UNSTABLE_JOIN",
        "Float32",
    ),
    "not constant": (
        STORE,
        "    for i in cutlass.range_constexpr(t):\n    " + STORE,
        "compile.dsl.ARG_NON_CONSTANT",
        "",
    ),
    "dtype": (STORE, "    y[b, t] = Float32(1.0)\n", "compile.dsl", "BFloat16"),
    "bad instruction": (STORE, "    cute.arch.inline_ptx('bogus.op;')\n" + STORE, "compile.ptxas", "bogus"),
    "bad types for NVVM": (
        STORE,
        "    cute.arch.inline_ptx('mov.b32 {$w0}, {$r0};', write_only_types=[Float32], read_only_args=[m[0, 0]])\n",
        "compile.nvvm",
        "libNVVM",
    ),
    "native abort": (
        STORE,
        "    r = cute.make_rmem_tensor((3,), BFloat16)\n"
        f"    cute.copy({ATOM}, cute.local_tile(m[0, None], (3,), (t,)), r)\n",
        "compile.crash.SIGABRT",
        "bad_variant_access",
    ),
    "never launched": (LAUNCH, "    kernel(m, w, d, y)\n", "compile.dsl.LAUNCH_NEVER_ISSUED", "launch"),
    "no kernel": (LAUNCH, "    pass\n", "compile.contract", "launches no kernel"),
    "wrong parameters": ("y: cute.Tensor, stream", "y: cute.Tensor, z: cute.Tensor, stream", "compile.dsl.", "w_down"),
    "no build": ("def build", "def rebuild", "compile.contract", "no function build"),
    "build returns no function": (BUILD, "    return 3\n", "compile.contract", "returned int"),
    "build raises": (BUILD, "    raise ValueError('no such width')\n", "compile.build", "no such width"),
    "build exits": (BUILD, "    raise SystemExit(0)\n", "compile.build", "SystemExit"),
    "recursion": (BUILD, "    return build(dims, tokens, arch)\n", "compile.recursion", "recursion"),
    "memory": (BUILD, "    return bytearray(1 << 40)\n", "compile.memory", "MemoryError"),
    "endless": (BUILD, "    while True:\n        pass\n", "compile.timeout", "CPU time"),
    "workspaces": (BUILD, BUILD + WORKSPACES, "compile.contract", "workspaces"),
    "workspace dtype": (BUILD, BUILD + WORKSPACES.replace("{}", "[('bf17', (3,))]"), "compile.contract", "bf17"),
    "workspace shape": (BUILD, BUILD + WORKSPACES.replace("{}", "[('f32', (0,))]"), "compile.contract", "positive"),
    "huge workspace": (
        "y: cute.Tensor, stream",
        "y: cute.Tensor, x: cute.Tensor, stream",
        "audit.workspace",
        "bytes",
    ),
    "memory of its own": (STORE, HIDDEN + STORE, "audit.state", "4 bytes of device variables"),
    "spill": (STORE, SPILL, "audit.spill", "272 bytes of stack"),
    "shared memory": (STORE, SMEM, "audit.smem", "280000"),
    "threads": ("[128, 1, 1]", "[2048, 1, 1]", "audit.block", "2048"),
}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileGate]:
    cache = tmp_path_factory.mktemp("cache")
    with Builder(limits=Limits(cpu_seconds=4)) as builder, CompileGate(OP, cache, builder) as made:
        yield made


def run(gate: CompileGate, source: str) -> CompileReport:
    return gate.run(Candidate(OP.name, source, Origin("test")), [PROBLEM])


def test_the_unbroken_candidate_passes(gate: CompileGate) -> None:
    report = run(gate, SOURCE)
    assert report.result.code == "compile.pass", report.result.message


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_candidate_fails_under_its_code(gate: CompileGate, name: str) -> None:
    old, new, code, words = BROKEN[name]
    source = SOURCE.replace(old, new)
    if name == "huge workspace":
        source += WORKSPACES.replace("{}", "[('f32', (1 << 28,))]")
    assert source != SOURCE
    report = run(gate, source)
    message = report.result.message
    assert report.result.status is Status.FAIL
    assert report.result.code == code or (code.endswith(".") and report.result.code.startswith(code))
    assert words in message
    assert report.artefacts == ()
    assert "\x1b" not in message and "/tmp/" not in message and str(Path.home()) not in message


def test_failures_are_remembered_but_nothing_is_built_twice(gate: CompileGate) -> None:
    source = SOURCE.replace(STORE, "    y[b, t] = nowhere_else\n")
    first = run(gate, source)
    built = gate.built
    second = run(gate, source)
    assert (second.result.code, second.result.message) == (first.result.code, first.result.message)
    assert gate.built == built
    assert second.result.evidence["cached"] == 1


class Recovering(Builder):
    """A real builder on a machine that holds no file of more than 1000 bytes during the first `bad` builds."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad, self.asked = bad, 0

    def build(self, source: str, signature: Signature, defect: str = "") -> Built | BuildFailure:
        self.asked += 1
        self._limits = Limits(file_bytes=1000) if self.asked <= self.bad else Limits()
        return super().build(source, signature, defect)


def test_what_the_machine_could_not_do_is_tried_again_and_never_remembered(tmp_path: Path) -> None:
    with Recovering(bad=2) as builder, CompileGate(OP, tmp_path, builder) as made:
        first = run(made, SOURCE).result
        assert (first.status, first.code) == (Status.FAIL, "compile.dsl") and "File too large" in first.message
        assert (builder.asked, made.built, made.cached) == (2, 1, 0)
        second = run(made, SOURCE).result
        assert (second.code, made.cached) == ("compile.pass", 0), second.message
        assert builder.asked == 3


def test_a_machine_that_has_recovered_at_once_is_not_noticed(tmp_path: Path) -> None:
    with Recovering(bad=1) as builder, CompileGate(OP, tmp_path, builder) as made:
        assert run(made, SOURCE).result.code == "compile.pass"
        assert (builder.asked, made.built) == (2, 1)


def test_a_failure_that_lasts_is_built_once_and_a_dead_compiler_is_built_again(tmp_path: Path) -> None:
    asked = {}
    with Recovering(bad=0) as builder, CompileGate(OP, tmp_path, builder) as made:
        for name in ("dtype", "spill", "native abort"):
            old, new, code, _ = BROKEN[name]
            before = builder.asked
            reports = [run(made, SOURCE.replace(old, new)).result for _ in range(2)]
            assert [r.code for r in reports] == [code, code]
            asked[name] = builder.asked - before
    assert asked == {"dtype": 1, "spill": 1, "native abort": 4}


def test_messages_are_cut_in_the_middle() -> None:
    text = "\x1b[31mstart\x1b[0m" + "x" * 100_000 + "end\x07"
    got = clean(text, 200)
    assert got.startswith("start") and got.endswith("end")
    assert len(got) < 260 and "characters cut" in got
