"""Launches whose blocks wait for one another pass the compile gate only where they are sure to run at once."""

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from kgen.gates.occupancy import limits, resident, sure
from kgen.gates.spins import breach, waiting, waiting_file
from kgen.records import BuildRecord, Compiler, KernelFacts, Launch, Problem

HEX, CU = "0" * 64, Compiler("4", "cu12")
KERNEL = KernelFacts("k", registers=32, stack_bytes=0, static_smem=0, max_threads=0, code_sha256=HEX)
LAUNCH = Launch("k", (264, 1, 1), (1024, 1, 1), (1, 1, 1), dynamic_smem=0)  # two blocks an SM, on 132 SMs
READING = """.visible .entry k(
{
$L1:
\tREAD
\tsetp.ne.b32 %p1, %r1, 0;
\t@%p1 bra $L1;
\tret;
}
"""
WAIT = READING.replace("READ", "ld.acquire.gpu.global.b32 %r1, [%rd1];")


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
        (32, 8, 232448, 8, 0, 72),
        (32, 8, 232448, 16, 0, 16),  # one cluster always fits
        (64, 104, 0, 1, 0, 8 * 132),  # two of 16 warps a block, where nine blocks would fit by the sum of registers
        (544, 104, 0, 1, 0, 132),  # 17 warps of a block: what was launched at all is there
        (1024, 32, 0, 2, 0, 256),
    ],
)
def test_as_many_blocks_are_sure_as_fit_in_the_worst_case(
    block: int, registers: int, smem: int, cluster: int, carveout: int, blocks: int
) -> None:
    assert sure("sm_90a", block, registers, smem, cluster, carveout) == blocks


def test_each_architecture_has_its_sms_and_an_unknown_one_the_fewest() -> None:
    assert [sure(arch, 1024, 64, 0, 1, 0) for arch in ("sm_90a", "sm_103a", "sm_100a")] == [132, 148, 132]


def test_an_sm_is_shared_by_what_each_resource_allows() -> None:
    found = limits(96, 33, 1024)
    assert found == {"registers": 17, "shared memory": 114, "threads": 21, "blocks": 32}
    assert (resident(96, 33, 1024), resident(1024, 255, 0), resident(0, 0, 0)) == (17, 1, 32)
    assert limits(96, 33, 1024, 50)["shared memory"] == 57
    assert [limits(threads, 8, 0)["registers"] for threads in (32, 33)] == [256, 128]
    assert limits(32, 0, 0)["registers"] == 256, "registers come by eight"
    assert [limits(threads, 8, 0)["threads"] for threads in (0, 1, 683)] == [2048, 2048, 2]
    assert [limits(32, 8, smem)["shared memory"] for smem in (232448, 232449)] == [1, 0]
    assert resident(32, 8, 102400) == 2


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
    assert "in clusters of 2 only 256 are" in said(tmp_path, replace(LAUNCH, cluster=(2, 1, 1)))
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
        ("atom.global.cas.b32 %r1;", False),
        ("atom.global.add.u32 %r1;", False),
        ("atom.global.cas.L2::cache_hint.b32 %r1, [%rd1], %r5, %r5, %rd9;", True),
        ("atom.global.add.L2::cache_hint.u32 %r1, [%rd1], %r6, %r8;", False),
        ("ld.mmio.relaxed.sys.global.u32 %r1, [%rd1];", True),
        ("ld.global.b32 %r1, [%rd1];", False),
    ],
)
def test_an_atomic_that_leaves_what_it_reads_is_a_wait_and_a_lock_is_none(read: str, found: bool) -> None:
    moves = "{\n\tmov.b32 %r7, 0;\n\tmov.b32 %r8, 0;\n\tmov.b32 %r7, 1;"
    assert waiting(READING.replace("READ", read).replace("{", moves)) == (("k",) if found else ())


def test_a_value_that_is_tested_before_it_is_read_again_is_seen() -> None:
    text = WAIT.replace("\t@%p1 bra $L1;\n", "").replace(
        "\tld.a", "\tsetp.eq.b32 %p2, %r1, 5;\n\t@%p2 bra $L2;\n\tld.a"
    )
    assert waiting(text.replace("\tret;", "\tbra $L1;\n$L2:\n\tret;")) == ("k",)


BUILT = json.loads(lzma.decompress((Path(__file__).parent / "ptx_corpus" / "built.json.xz").read_bytes()))
SPIN = ("flag.", "grid_barrier.")  # the corpus's kernels with `while` round a load; `lock` spins on an atomic
ONCE = "flag.plain_load"  # the compiler takes a plain load out of the loop


def test_of_all_kernels_of_the_corpus_those_that_wait_for_a_value_are_found() -> None:
    wanted = {name for name in BUILT if name.startswith(SPIN)} - {ONCE}
    assert {name for name in BUILT if waiting(BUILT[name]["ptx"])} == wanted and len(wanted) >= 18


LOOP = """.visible .entry k(
{
$L1:
\tld.acquire.gpu.global.b32 %r1, [%rd1];
\t{MORE}
\tsetp.ne.b32 %p1, %r1, 0;
\t@%p1 bra $L1;
\tret;
}
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LOOP.replace("{MORE}", "mov.u32 %r9, 7;"), True),
        (LOOP.replace("{MORE}", "add.s64 %rd1, %rd1, 4;"), False),  # walks over an array
        (LOOP.replace("{MORE}", "").replace("%r1, 0", "%r2, 0"), False),  # counts turns
        (LOOP.replace("{MORE}", "").replace("ld.acquire.gpu", "ld"), False),  # read once, as far as PTX says
        (LOOP.replace("{MORE}", "").replace("global", "shared"), False),
        (LOOP.replace("{MORE}", "").replace("ld.acquire.gpu.global", "ld.volatile.global"), True),
        (LOOP.replace("{MORE}", "@%p1 bra $L9;").replace("ret;", "ret;\n$L9:"), True),
        (LOOP.replace("{MORE}", "nop;").replace("\t@%p1 bra $L1;\n", ""), False),
        ("", False),
        ("$L: bra $L;\n.entry k(\n@ bra ;", False),
    ],
)
def test_a_wait_is_a_loop_that_ends_by_what_it_reads_from_one_place(text: str, found: bool) -> None:
    assert waiting(text) == (("k",) if found else ())


def test_the_kernel_that_waits_is_named_and_a_file_that_is_gone_names_none(tmp_path: Path) -> None:
    path = tmp_path / "a.ptx"
    path.write_text(LOOP.replace("{MORE}", "").replace("%r1, 0", "%r2, 0") + LOOP.replace("entry k", "entry other"))
    assert waiting_file(path) == ("other",)
    assert waiting_file(tmp_path / "b.ptx") == ()


def kernel(*lines: str, name: str = "k") -> str:
    return "\n".join((f".visible .entry {name}(", "{", *lines, "ret;", "}")) + "\n"


READ, TEST, AGAIN = "ld.acquire.gpu.global.b32 %r1, [%rd1];", "setp.ne.b32 %p1, %r1, 0;", "@%p1 bra $L1;"
COUNT, TURN = "setp.lt.s32 %p2, %r4, 9;", "@%p2 bra $L1;"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            ("$L1:", READ, TEST, COUNT, TURN, "@%p1 bra $L9;", "$L9:"),
            False,
        ),  # what it read matters behind the loop only
        (("$L1:", READ, TEST, "@%p1 bra $NOWHERE;", COUNT, TURN), False),
        (("$L1:", READ, TEST, "@%p1 bra $L2;", "nop;", "$L2:", "nop;", COUNT, TURN), False),  # stays in the loop
        (("$L1:", READ, TEST, COUNT, "@%p1 bra $L2;", "nop;", "$L2:", TURN), False),  # to its very last branch
        (("$L1:", READ, TEST, COUNT, "@%p1 bra $L2;", TURN, "$L2:"), True),  # right behind it
        (("$L1:", READ, TEST, "bra $L2;", "$L2:", "bra $L1;"), False),  # ends by nothing
        (("$L1:", READ, "st.global.b32 [%rd1], %r1;", TEST, AGAIN), True),  # a store changes no register
        (("$L1:", READ, "st.global.b32 [%rd9], %r1;", "setp.ne.b32 %p1, %rd9, 0;", AGAIN), False),
        (("$L1:", "ld.acquire.gpu.global.b32 %r1, [%rd1+%rd2];", "add.s64 %rd2, %rd2, 4;", TEST, AGAIN), False),
        (("$L1:", "ld.relaxed.gpu.global.v2.b32 {%r0, %r1}, [%rd1];", TEST, AGAIN), True),
        (("$L1:", "ld.relaxed.gpu.global.v2.b32 {%r0, %r2}, [%rd1];", TEST, AGAIN), False),
        (("$L1:", "ld.acquire.gpu.global.b64 %rd5, [%rd1];", "mov.b64 {%r1, %r2}, %rd5;", TEST, AGAIN), True),
        (("$L1:", READ, "mov.b64 {%r1, %r5}, %rd7;", "mov.b32 %r6, %r2;", COUNT, TURN), False),
        (("$L1:", READ, "@%p1 mov.b32 %r4, 1;", TEST, COUNT, "setp.eq.b32 %p2, %r4, 1;", TURN), True),  # by a predicate
        (("$L1:", READ, TEST, *("nop;",) * 197, AGAIN), True),  # 200 instructions
        (("$L1:", READ, TEST, *("nop;",) * 198, AGAIN), False),
        (("@%p1 bra $L1;", READ, TEST, "$L1:"), False),  # forwards
        (("$L1:", "atom.global.add.u32 %r1, [%rd1], %r8;", "add.s32 %r8, 0;", TEST, AGAIN), False),  # no register is 0
    ],
)
def test_a_loop_waits_only_where_what_it_read_keeps_it_going_or_ends_it(lines: tuple[str, ...], found: bool) -> None:
    assert waiting(kernel(*lines)) == (("k",) if found else ())


def test_of_several_kernels_each_has_its_own_loops_and_is_named_once_in_their_order() -> None:
    loop = ("$L1:", READ, TEST, AGAIN)
    quiet = kernel("nop;", name="quiet")
    text = kernel(*loop, name="b") + quiet + kernel(*loop, name="a") + kernel(*loop, name="b") + quiet
    assert waiting("$L1:\nnop;\n" + text) == ("b", "a")
    assert waiting(kernel("$L1:", READ, TEST) + kernel(AGAIN, name="other")) == (), "a label is its kernel's"
    assert waiting("\n".join(loop)) == (), "no kernel"
