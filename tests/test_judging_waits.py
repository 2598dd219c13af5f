"""Launches whose blocks wait for one another pass the compile gate only where they are sure to run at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from kgen.gates.occupancy import limits, resident, sure
from kgen.gates.spins import breach, waiting
from kgen.records import BuildRecord, Compiler, KernelFacts, Launch, Problem

HEX, CU = "0" * 64, Compiler("4", "cu12")
KERNEL = KernelFacts("k", registers=32, stack_bytes=0, static_smem=0, max_threads=0, code_sha256=HEX)
LAUNCH = Launch("k", (264, 1, 1), (1024, 1, 1), (1, 1, 1), dynamic_smem=0)  # two blocks an SM, on 132 SMs
LOOP = """.visible .entry k(
{
$L1:
\tREAD
\tsetp.ne.b32 %p1, %r1, 0;
\t@%p1 bra $L1;
\tret;
}
"""
WAIT = LOOP.replace("READ", "ld.acquire.gpu.global.b32 %r1, [%rd1];")


def said(
    tmp_path: Path, *launches: Launch, kernel: KernelFacts = KERNEL, arch: str = "sm_90a", text: str = WAIT
) -> str:
    path = tmp_path / "k.ptx"
    if not path.exists():
        path.write_text(text)
    kernels = (replace(kernel, name="other", registers=255), kernel)
    record = BuildRecord("c", Problem("op", "nano", 8, arch), "f", HEX, 0, HEX, kernels, launches, (), CU, "", 0.0)
    return breach(record, path)


@pytest.mark.parametrize(
    ("block", "registers", "smem", "cluster", "carveout", "blocks"),
    [
        (1024, 32, 0, 1, 0, 2 * 132),  # threads, and registers to the last one
        (1024, 33, 0, 1, 0, 132),  # 40 registers a thread: 40960 of 65536 a block
        (1024, 64, 0, 1, 0, 132),
        (64, 8, 0, 1, 0, 32 * 132),  # blocks
        (33, 8, 0, 1, 0, 32 * 132),
        (65, 8, 0, 1, 0, 21 * 132),  # three warps of 64
        (32, 104, 0, 1, 0, 16 * 132),  # four warps of 3328 registers in each quarter of 16384, not 19 in all
        (160, 104, 0, 1, 0, 3 * 132),  # five of those 16 warps a block
        (1, 0, 0, 1, 0, 32 * 132),
        (0, 8, 0, 1, 0, 32 * 132),
        (32, 255, 0, 1, 0, 8 * 132),
        (32, 8, 232448, 1, 0, 132),
        (32, 8, 102400, 1, 0, 2 * 132),  # 100 KiB and 1 KiB, twice in 228
        (32, 8, 115712, 1, 0, 2 * 132),  # 113 KiB and 1 KiB
        (32, 8, 115713, 1, 0, 132),
        (32, 8, 102400, 1, 50, 132),  # once in 114 KiB
        (32, 8, 102400, 1, 25, 132),  # the machine gives more where one block needs it
        (32, 8, 102400, 1, -1, 132),  # whatever it gives
        (32, 8, 232448, 2, 0, 124),  # each of 8 parts may have an SM left over
        (32, 8, 232448, 4, 0, 108),
        (32, 8, 232448, 16, 0, 16),  # one cluster always fits
        (1024, 32, 0, 2, 0, 256),
    ],
)
def test_as_many_blocks_are_sure_as_fit_in_the_worst_case(
    block: int, registers: int, smem: int, cluster: int, carveout: int, blocks: int
) -> None:
    assert sure("sm_90a", block, registers, smem, cluster, carveout) == blocks


def test_each_architecture_has_its_sms_and_an_unknown_one_the_fewest() -> None:
    assert [sure(arch, 1024, 64, 0) for arch in ("sm_90a", "sm_103a", "sm_100a")] == [132, 148, 132]


def test_an_sm_is_shared_by_what_each_resource_allows() -> None:
    found = limits(96, 33, 1024)
    assert found == {"registers": 17, "shared memory": 114, "threads": 21, "blocks": 32}
    assert (resident(96, 33, 1024), resident(1024, 255, 0), resident(0, 0, 0)) == (17, 1, 32)
    assert limits(96, 33, 1024, 50)["shared memory"] == 57


def test_the_last_block_that_is_not_sure_refuses_the_launch_in_one_line(tmp_path: Path) -> None:
    assert said(tmp_path, LAUNCH) == ""
    found = said(tmp_path, replace(LAUNCH, grid=(53, 5, 1)))
    assert found == (
        "kernel k: its blocks wait in a loop for one another, and of the 265 only 264 are sure to run at once,"
        " so that it may never end: launch it with cooperative=True"
    )
    assert said(tmp_path, replace(LAUNCH, grid=(148, 2, 1)), arch="sm_103a") == ""
    assert said(tmp_path, replace(LAUNCH, grid=(297, 1, 1)), arch="sm_103a") != ""


def test_all_that_decides_is_that_launch_s_own(tmp_path: Path) -> None:
    many = replace(LAUNCH, grid=(4096, 1, 1))
    assert said(tmp_path, replace(many, attributes={"cooperative": 1})) == ""
    assert "of the 4096 only" in said(tmp_path, replace(many, attributes={"pdl": 1, "cooperative": 0}))
    assert said(tmp_path, replace(many, kernel="other")) == "", "that one waits for nobody"
    assert "kernel k: " in said(tmp_path, replace(many, kernel="other"), LAUNCH, replace(LAUNCH, grid=(1, 1, 265)))
    assert said(tmp_path) == ""


def test_shared_memory_clusters_and_the_carve_out_count(tmp_path: Path) -> None:
    small = replace(LAUNCH, block=(32, 1, 1), dynamic_smem=100 << 10)
    assert said(tmp_path, small) == ""
    assert "only 132 are" in said(tmp_path, small, kernel=replace(KERNEL, static_smem=14 << 10))
    assert "only 132 are" in said(tmp_path, replace(small, attributes={"smem_carveout": 50}))
    assert "of the 264 in clusters of 4 only 240 are" in said(tmp_path, replace(LAUNCH, cluster=(2, 2, 1)))
    assert (
        said(tmp_path, replace(LAUNCH, grid=(16, 1, 1), cluster=(16, 1, 1)), kernel=replace(KERNEL, registers=64)) == ""
    )


def test_a_long_name_is_cut_and_a_text_that_is_gone_refuses_nothing(tmp_path: Path) -> None:
    name, many = "n" * 80, replace(LAUNCH, grid=(265, 1, 1))
    found = said(
        tmp_path,
        replace(many, kernel=name),
        kernel=replace(KERNEL, name=name),
        text=WAIT.replace("entry k", "entry " + name),
    )
    assert f"kernel {name[:60]}: " in found
    (tmp_path / "gone").mkdir()
    assert said(tmp_path / "gone", many, text="") == ""


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ("atom.global.acquire.add.u32 %r1, [%rd1], 0;", True),
        ("atom.add.acquire.gpu.u32 %r1, [%rd1], %r8;", True),  # r8 is 0 and nothing else
        ("atom.global.or.b32 %r1, [%rd1], %r7;", False),  # r7 is 0, and 1 later
        ("atom.global.xor.b32 %r1, [%rd1], 0;", True),
        ("atom.global.add.u32 %r1, [%rd1], 1;", False),
        ("atom.global.max.u32 %r1, [%rd1], 0;", False),
        ("atom.shared.add.u32 %r1, [%rd1], 0;", False),
        ("atom.global.cas.b32 %r1, [%rd1], %r5, %r5;", True),
        ("atom.global.cas.b32 %r1, [%rd1], 0, 1;", False),  # a lock: who holds it runs already
        ("atom.global.acquire.exch.b32 %r1, [%rd1], 1;", False),
        ("atom.global.cas.b32 %r1, [%rd1], 0;", False),  # no PTX
        ("ld.mmio.relaxed.sys.global.u32 %r1, [%rd1];", True),
        ("ld.global.b32 %r1, [%rd1];", False),
    ],
)
def test_an_atomic_that_leaves_what_it_reads_is_a_wait_and_a_lock_is_none(read: str, found: bool) -> None:
    moves = "{\n\tmov.b32 %r7, 0;\n\tmov.b32 %r8, 0;\n\tmov.b32 %r7, 1;"
    assert waiting(LOOP.replace("READ", read).replace("{", moves)) == (("k",) if found else ())


def test_a_value_that_is_tested_before_it_is_read_again_is_seen() -> None:
    text = WAIT.replace("\t@%p1 bra $L1;\n", "").replace(
        "\tld.a", "\tsetp.eq.b32 %p2, %r1, 5;\n\t@%p2 bra $L2;\n\tld.a"
    )
    assert waiting(text.replace("\tret;", "\tbra $L1;\n$L2:\n\tret;")) == ("k",)
