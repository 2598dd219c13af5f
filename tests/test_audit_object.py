"""The object audit: a real object passes, and every way of spoiling it is refused under its code."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builds import build_launch, shared

from kgen.gates.audit import object as objects
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.gates.builder.pool import Builder


@pytest.fixture(scope="module")
def builder() -> Builder:
    return shared()


@pytest.fixture(scope="module")
def good(builder: Builder) -> bytes:
    return build_launch(builder, "pdl").object


@pytest.fixture(scope="module")
def cubin(good: bytes) -> Cubin:
    return objects.check(good, "sm_90a")


def code_of(data: bytes, arch: str = "sm_90a") -> str:
    with pytest.raises(AuditError) as caught:
        objects.check(data, arch)
    assert "\n" not in str(caught.value)
    return caught.value.code


def merged(folder: Path, good: bytes, extra: str) -> bytes:
    """The good object with a C file linked into it."""
    (folder / "good.o").write_bytes(good)
    (folder / "extra.c").write_text(extra)
    flags = ["-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fcf-protection=none"]
    subprocess.run(["cc", "-c", "-fPIC", *flags, "extra.c", "-o", "extra.o"], cwd=folder, check=True)
    subprocess.run(["ld", "-r", "good.o", "extra.o", "-o", "both.o"], cwd=folder, check=True, capture_output=True)
    return (folder / "both.o").read_bytes()


def copied(folder: Path, good: bytes, *options: str) -> bytes:
    (folder / "good.o").write_bytes(good)
    subprocess.run(["objcopy", *options, "good.o", "changed.o"], cwd=folder, check=True)
    return (folder / "changed.o").read_bytes()


def test_a_real_object_holds_one_cubin_with_its_facts(cubin: Cubin) -> None:
    (kernel,) = cubin.kernels
    assert cubin.is_for("sm_90a")
    assert kernel.name.startswith("kernel_") and len(kernel.code_sha256) == 64
    assert 0 < kernel.registers <= 255
    assert (kernel.stack_bytes, kernel.static_smem, kernel.max_threads) == (0, 0, 64)
    assert cubin.parameters[kernel.name] == (8, 8, 4, 4)


@pytest.mark.parametrize("kind", ["tma", "cluster", "cooperative", "smem"])
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_every_launch_kind_passes_on_both_architectures(builder: Builder, kind: str, arch: str) -> None:
    assert objects.check(build_launch(builder, kind, arch).object, arch).is_for(arch)


@pytest.mark.parametrize("arch", ["sm_90", "sm_103a", "sm_100a", "nonsense"])
def test_another_architecture_is_refused(good: bytes, arch: str) -> None:
    assert code_of(good, arch) == "audit.arch"


# C that is linked into the object -> code
EXTRAS = {
    "__attribute__((constructor)) static void run(void) {}": "audit.constructor",
    "__attribute__((destructor)) static void run(void) {}": "audit.constructor",
    "int system(const char *); __attribute__((used)) static int run(void) { return system(0); }": "audit.undefined",
    "extern int cudaMalloc(void **, long) __attribute__((weak)); void *use = (void *)cudaMalloc;": "audit.",
    "int malloc(int n) { return n; }": "audit.symbol",
    "int kgen_launch_count(int n) { return 0; }": "audit.symbol",
    "__thread int local = 1; __attribute__((used)) static int *run(void) { return &local; }": "audit.s",
    'static void *pick(void) { return 0; } static void run(void) __attribute__((ifunc("pick"), used));': "audit.symbol",
    '__attribute__((section(".kgen_odd"), used)) static int odd = 1;': "audit.section",
}


@pytest.mark.parametrize("extra", list(EXTRAS))
def test_an_object_with_something_added_is_refused(good: bytes, tmp_path: Path, extra: str) -> None:
    assert code_of(merged(tmp_path, good, extra)).startswith(EXTRAS[extra])


def test_linking_nothing_in_changes_nothing(good: bytes, tmp_path: Path) -> None:
    """So that the refusals above are for what was added."""
    objects.check(merged(tmp_path, good, "static int nothing;"), "sm_90a")


def test_two_cubins_are_refused(good: bytes, cubin: Cubin, tmp_path: Path) -> None:
    (tmp_path / "more").write_bytes(cubin.image)
    extra = '__asm__(".section .rodata\\n.incbin \\"more\\"\\n.text\\n");'
    assert code_of(merged(tmp_path, good, extra)) == "audit.cubins"


def test_a_hidden_elf_image_is_refused(good: bytes, cubin: Cubin, tmp_path: Path) -> None:
    (tmp_path / "more").write_bytes(cubin.data)
    extra = '__asm__(".section .rodata\\n.incbin \\"more\\"\\n.text\\n");'
    assert code_of(merged(tmp_path, good, extra)) == "audit.elf"


def test_a_fat_binary_with_ptx_in_it_is_refused(good: bytes, cubin: Cubin) -> None:
    at = good.index(cubin.image)
    assert code_of(good[: at + 16] + b"\x01" + good[at + 17 :]) == "audit.elf"  # kind 1: PTX, compiled by the driver


def test_an_object_without_the_entry_is_refused(good: bytes, tmp_path: Path) -> None:
    renamed = copied(tmp_path, good, "--redefine-sym", "__tvm_ffi_kgen_entry=__tvm_ffi_other")
    assert code_of(renamed) == "audit.symbol"


def test_an_executable_stack_is_refused(good: bytes, tmp_path: Path) -> None:
    assert code_of(copied(tmp_path, good, "--remove-section", ".note.GNU-stack")) == "audit.section"


@pytest.mark.parametrize("junk", [b"", b"\x7fELF", b"x" * 5000, Path("/bin/true").read_bytes()])
def test_other_files_are_refused(junk: bytes) -> None:
    assert code_of(junk).startswith("audit.")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_object_is_judged_never_crashed_on(good: bytes, data: st.DataObject) -> None:
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(good)), st.integers(0, len(good))))
    try:
        objects.check(bytes(changed[:cut]), "sm_90a")
    except AuditError as error:
        assert error.code.startswith("audit.")
