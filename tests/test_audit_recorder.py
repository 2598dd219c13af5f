"""The launch recorder on real objects: launches as they would happen, and launchers that do anything else."""

import struct
import subprocess
from pathlib import Path

import pytest
from support.builds import ARGUMENTS, build_launch, shared

from kgen.gates.audit import object as objects
from kgen.gates.audit import recorder as recorders
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.gates.audit.recorder import Recorder, RecorderError
from kgen.gates.builder.pool import Builder
from kgen.gates.sandbox import choose
from kgen.records import Launch

A, Y = 1 << 40, 2 << 40  # where the recorder puts the tensors


@pytest.fixture(scope="module")
def builder() -> Builder:
    return shared()


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(choose(), tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def sample(builder: Builder) -> tuple[bytes, Cubin]:
    data = build_launch(builder, "pdl").object
    return data, objects.check(data, "sm_90a")


def one_launch(builder: Builder, recorder: Recorder, kind: str, arch: str = "sm_90a") -> Launch:
    data = build_launch(builder, kind, arch).object
    launches = recorder.record(data, objects.check(data, arch), ARGUMENTS)
    assert len(launches) == 1
    return launches[0]


@pytest.mark.parametrize(
    ("kind", "cluster", "attributes", "smem"),
    [
        ("cluster", (2, 1, 1), {}, 0),
        ("cooperative", (1, 1, 1), {"cooperative": 1}, 0),
        ("pdl", (1, 1, 1), {"pdl": 1}, 0),
        ("smem", (1, 1, 1), {}, 100_000),
    ],
)
def test_launch_attributes_are_decoded(
    builder: Builder, recorder: Recorder, kind: str, cluster: tuple[int, ...], attributes: dict[str, int], smem: int
) -> None:
    launch = one_launch(builder, recorder, kind)
    assert (launch.grid, launch.block, launch.cluster) == ((4, 1, 1), (64, 1, 1), cluster)
    assert (dict(launch.attributes), launch.dynamic_smem) == (attributes, smem)


def test_tensors_are_named_and_scalars_are_raw(builder: Builder, recorder: Recorder) -> None:
    launch = one_launch(builder, recorder, "pdl")
    assert [(a.tensor, a.offset) for a in launch.args] == [("a", 0), ("y", 0), ("", 0), ("", 0)]
    assert bytes.fromhex(launch.args[0].raw) == struct.pack("<Q", A)
    assert bytes.fromhex(launch.args[2].raw) == struct.pack("<f", 2.0)
    assert bytes.fromhex(launch.args[3].raw) == struct.pack("<i", 5)


def test_offsets_into_a_tensor_are_seen(builder: Builder, recorder: Recorder) -> None:
    first = one_launch(builder, recorder, "offset").args[0]
    assert (first.tensor, first.offset) == ("a", 128)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_a_tma_descriptor_names_its_tensor(builder: Builder, recorder: Recorder, arch: str) -> None:
    launch = one_launch(builder, recorder, "tma", arch)
    descriptor = launch.args[0]
    data = bytes.fromhex(descriptor.raw)
    assert (descriptor.tensor, len(data)) == ("a", 128)
    assert data[64:] == bytes(64), "the launcher's stack, which differs from process to process"
    assert launch.dynamic_smem > 64 * 64 * 2


def test_wrong_arguments_are_refused_by_the_launcher_itself(recorder: Recorder, sample: tuple[bytes, Cubin]) -> None:
    with pytest.raises(AuditError, match="refuses the op's own arguments"):
        recorder.record(*sample, ARGUMENTS[:3])


LAUNCHER = """
typedef unsigned long long u64;
struct config { unsigned grid[3], block[3]; u64 smem; void *stream; const unsigned char *attributes; unsigned count; };
int _cudaLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int _cudaLibraryGetKernel(void **, void *, const char *);
int _cudaLaunchKernelEx(const struct config *, const void *, void **);
void *TVMFFIEnvGetStream(int, int);
__asm__(".section .rodata\\nfatbin: .incbin \\"kernel.fatbin\\"\\n.text\\n");
extern const unsigned char fatbin[] __attribute__((visibility("hidden")));
static int calls;
static int launch(void *stream, void *function, const void *code, unsigned attribute) {
    void *library, *kernel;
    u64 a = 1ULL << 40, y = 2ULL << 40;
    float scale = 2; int count = 5;
    void *args[] = {&a, &y, &scale, &count};
    unsigned char attributes[72] = {0};
    attributes[0] = (unsigned char)attribute, attributes[8] = 1;
    struct config c = {{4, 1, 1}, {64, 1, 1}, 0, stream, attributes, attribute ? 1 : 0};
    _cudaLibraryLoadData(&library, code, 0, 0, 0, 0, 0, 0);
    _cudaLibraryGetKernel(&kernel, library, "KERNEL");
    return _cudaLaunchKernelEx(&c, function ? function : kernel, args);
}
int __tvm_ffi_kgen_entry(void *self, const void *args, int count, void *result) {
    calls++;
    BODY
}
"""
GOOD_LAUNCH = "return launch(TVMFFIEnvGetStream(2, 0), 0, fatbin, 0);"
# what a hand-made launcher does -> words of the refusal
TRICKS = {
    "return launch((void *)1, 0, fatbin, 0);": "stream other than the caller's",
    "static int other; return launch(TVMFFIEnvGetStream(2, 0), &other, fatbin, 0);": "not a kernel of the object",
    "static unsigned char code[1 << 20]; return launch(TVMFFIEnvGetStream(2, 0), 0, code, 0);": "other code",
    "return launch(TVMFFIEnvGetStream(2, 0), 0, fatbin, 1);": "launch attribute 1 is not allowed",
    "if (calls == 1) return 0; " + GOOD_LAUNCH: "do not launch the same",
    "for (;;) " + GOOD_LAUNCH.removeprefix("return "): "more than 256 launches",
    "for (;;) calls++;": "did not return",
    'int printf(const char *, ...); printf("hi"); ' + GOOD_LAUNCH: "the launcher prints",
    "return *(volatile int *)(1ULL << 40);": "may only launch",
    'long r; __asm__ volatile("syscall" : "=a"(r) : "a"(39) : "rcx", "r11"); return 0;': "made a system call",
    'long r; __asm__ volatile("syscall" : "=a"(r) : "a"(1), "D"(2), "S"(fatbin), "d"(8) : "rcx", "r11"); return 0;': (
        "made a system call"
    ),
}


def hand_made(folder: Path, cubin: Cubin, body: str) -> bytes:
    """An object whose launcher is written in C, round the kernel of a real build."""
    (folder / "kernel.fatbin").write_bytes(cubin.image)
    source = LAUNCHER.replace("KERNEL", cubin.kernels[0].name).replace("BODY", body)
    (folder / "launcher.c").write_text(source)
    command = ["cc", "-c", "-fPIC", "-O1", "-fno-stack-protector", "-w", "launcher.c", "-o", "launcher.o"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "launcher.o").read_bytes()


def test_a_hand_made_launcher_that_only_launches_is_recorded(
    recorder: Recorder, sample: tuple[bytes, Cubin], tmp_path: Path
) -> None:
    """So that the refusals below are for what they say."""
    launches = recorder.record(hand_made(tmp_path, sample[1], GOOD_LAUNCH), sample[1], ARGUMENTS)
    assert [launch.grid for launch in launches] == [(4, 1, 1)]


@pytest.mark.parametrize("body", list(TRICKS))
def test_a_launcher_that_does_anything_else_is_refused(
    recorder: Recorder, sample: tuple[bytes, Cubin], tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "SECONDS", 2.0)
    with pytest.raises(AuditError, match=TRICKS[body]):
        recorder.record(hand_made(tmp_path, sample[1], body), sample[1], ARGUMENTS)


def test_without_a_c_compiler_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(RecorderError, match="install one") as caught:
        Recorder(choose(), tmp_path)
    assert "\n" not in str(caught.value)
