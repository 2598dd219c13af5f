"""Launch limits and the agreement of launches with the cubin, on made-up facts at their edges."""

from dataclasses import replace

import pytest

from kgen.gates.audit import limits, ptx
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.records import KernelFacts, Launch

KERNEL = KernelFacts("k", registers=64, stack_bytes=0, static_smem=0, max_threads=0, code_sha256="0" * 64)
LAUNCH = Launch("k", (8, 1, 1), (1024, 1, 1), (1, 1, 1), dynamic_smem=limits.SMEM_BYTES)


def cubin(*kernels: KernelFacts) -> Cubin:
    return Cubin(b"", b"", 90, True, kernels, {})


def code_of(kernels: tuple[KernelFacts, ...], launches: tuple[Launch, ...]) -> str:
    with pytest.raises(AuditError) as caught:
        limits.check(cubin(*kernels), launches)
    return caught.value.code


def test_a_launch_at_every_limit_passes() -> None:
    limits.check(cubin(KERNEL), (LAUNCH,))
    limits.check(cubin(replace(KERNEL, max_threads=1024)), (replace(LAUNCH, cluster=(8, 1, 1)),))


@pytest.mark.parametrize(
    "launch",
    [
        replace(LAUNCH, block=(1, 1, 1)),
        replace(LAUNCH, block=(1, 1, 64)),
        replace(LAUNCH, grid=limits.GRID),
        replace(LAUNCH, grid=(32, 1, 1), cluster=(16, 1, 1)),
        replace(LAUNCH, grid=(2, 4, 6), cluster=(1, 2, 3)),
    ],
)
def test_what_stands_right_at_one_limit_passes(launch: Launch) -> None:
    limits.check(cubin(KERNEL), (launch,))


@pytest.mark.parametrize(
    ("launch", "code"),
    [
        (replace(LAUNCH, block=(1025, 1, 1)), "audit.block"),
        (replace(LAUNCH, block=(0, 1, 1)), "audit.block"),
        (replace(LAUNCH, block=(8, 1, 65)), "audit.block"),
        (replace(LAUNCH, dynamic_smem=limits.SMEM_BYTES + 1), "audit.smem"),
        (replace(LAUNCH, grid=(0, 1, 1)), "audit.grid"),
        (replace(LAUNCH, grid=(1, 65536, 1)), "audit.grid"),
        (replace(LAUNCH, cluster=(3, 1, 1)), "audit.cluster"),
        (replace(LAUNCH, cluster=(0, 1, 1)), "audit.cluster"),
        (replace(LAUNCH, grid=(32, 1, 1), cluster=(32, 1, 1)), "audit.cluster"),
        (replace(LAUNCH, kernel="other"), "audit.kernels"),
    ],
)
def test_a_launch_beyond_a_limit_is_refused(launch: Launch, code: str) -> None:
    assert code_of((KERNEL,), (launch,)) == code


@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        (replace(KERNEL, static_smem=1), "audit.smem"),
        (replace(KERNEL, registers=65), "audit.registers"),
        (replace(KERNEL, stack_bytes=8), "audit.spill"),
        (replace(KERNEL, max_threads=512), "audit.block"),
    ],
)
def test_a_kernel_beyond_a_limit_is_refused(kernel: KernelFacts, code: str) -> None:
    assert code_of((kernel,), (LAUNCH,)) == code


def test_a_kernel_that_is_never_launched_is_refused() -> None:
    assert code_of((KERNEL, replace(KERNEL, name="spare")), (LAUNCH,)) == "audit.kernels"


def test_a_launch_of_a_kernel_that_the_cubin_lacks_is_refused() -> None:
    with pytest.raises(AuditError, match="launched but not in the cubin: other"):
        limits.check(cubin(KERNEL), (LAUNCH, replace(LAUNCH, kernel="other")))


def test_device_variables_are_refused() -> None:
    with pytest.raises(AuditError, match="the cubin holds 4 bytes of device variables") as caught:
        limits.check(replace(cubin(KERNEL), variables=4), (LAUNCH,))
    assert caught.value.code == "audit.state"


def test_a_warp_that_is_not_full_takes_the_registers_of_a_whole_one() -> None:
    """29 warps of 72 registers a thread take 66,816 registers, 28 take 64,512; a block has 65,536."""
    wide = replace(KERNEL, registers=72)
    limits.check(cubin(wide), (replace(LAUNCH, block=(896, 1, 1)),))
    with pytest.raises(AuditError) as caught:
        limits.check(cubin(wide), (replace(LAUNCH, block=(900, 1, 1)),))
    assert caught.value.code == "audit.registers"


def test_of_a_long_name_sixty_characters_are_shown() -> None:
    long = "k" * 59 + "xyz"
    with pytest.raises(AuditError, match=f"kernel {'k' * 59}x: grid"):
        limits.check(cubin(replace(KERNEL, name=long)), (replace(LAUNCH, kernel=long, grid=(0, 1, 1)),))


def test_a_call_without_launches_is_refused() -> None:
    assert code_of((KERNEL,), ()) == "audit.launches"


def test_ptx_facts_count_instructions_not_words() -> None:
    text = """
    // ld.global.v4.b32 in a comment
    .visible .entry k(.param .u64 p)
    {
        .reg .b32 %r<9>;
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
        @%p1 ld.global.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
        ld.global.b32 %r1, [%rd1];
        st.local.b32 [%rd1], %r1;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};
        griddepcontrol.wait;
        bar.sync 0;
        ret;
    }
    """
    got = ptx.facts(text)
    assert got == {
        "instructions": 8,
        "global_loads": 3,
        "global_loads_16b": 2,
        "no_allocate": 1,
        "local": 1,
        "mma": 1,
        "pdl_wait": 1,
        "barriers": 1,
    }
