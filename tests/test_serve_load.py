"""`load` launches what was promoted, or runs the stock op and says why in exactly one line."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.sets import ARCH, DIMS, KEY, OP, WIN, fill, make_case

from kgen.contract import Values
from kgen.ops import REGISTRY
from kgen.promotion import Current, rollback
from kgen.records import sha256_bytes
from kgen.serve import Served, load
from kgen.store import KernelSet, SetPath
from kgen.store.kernelset import compress

CONTRACT = REGISTRY.get(OP)
CURRENT = Current({OP: CONTRACT.contract_sha256()}, 1)
BIN = 16


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The object of support/negate.c."""
    import tvm_ffi.libinfo

    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("needs a C compiler")
    out = tmp_path_factory.mktemp("native") / "negate.o"
    include = Path(tvm_ffi.__file__).parent / "include"
    source = Path(__file__).parent / "support" / "negate.c"
    subprocess.run([cc, "-O1", "-fPIC", "-I", str(include), "-c", str(source), "-o", str(out)], check=True)
    return out.read_bytes()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KGEN_SET", "KGEN_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KGEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def target(tmp_path: Path, native: bytes) -> SetPath:
    case = make_case("negate", {BIN: WIN}, op_contract=CONTRACT.contract_sha256(), objects={BIN: native})
    return fill(tmp_path / "set", case, current=CURRENT)


@pytest.fixture
def as_if_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine claims to hold a device of the kernel's arch; the kernel itself runs on the CPU."""
    monkeypatch.setattr(sys.modules["kgen.serve.load"], "device_capability", lambda: ARCH.rstrip("a"))


def values(served: Served) -> Values:
    made = served.op.inputs(served.problem, "normal", 1, "cpu")
    return {**made, **served.outputs("cpu")}


def check_stock(served: Served, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """The stock op runs, with its numbers, and one line says why."""
    lines = [r for r in caplog.records if r.name.startswith("kgen")]
    assert len(lines) == 1 and lines[0].levelno == logging.WARNING
    text = lines[0].getMessage()
    assert reason in text and "stock op" in text and "\n" not in text
    assert not served.promoted and reason in served.reason
    assert served.counts() == {} and served.launches() == {}
    v = values(served)
    expected = served.op.stock(served.problem)(v)["y"]
    got = served(v)
    assert set(got) == {"y"} and got["y"] is v["y"]
    assert torch.equal(got["y"], expected)


def test_a_promoted_kernel_is_linked_loaded_and_called(
    target: SetPath, as_if_here: None, caplog: pytest.LogCaptureFixture
) -> None:
    served = load(OP, DIMS, 12, ARCH, set=target.path)
    assert served.promoted and served.reason == "" and caplog.records == []
    assert served.problem.tokens == BIN
    v = values(served)
    assert torch.equal(served(v)["y"], -v["m"])  # type: ignore[operator,arg-type]  # tensors
    assert served.counts() == {}  # it launches nothing on a GPU
    assert sum(served.launches().values()) == 1


def test_a_promoted_kernel_is_used_again_from_the_cache(
    target: SetPath, as_if_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(OP, DIMS, BIN, ARCH, set=target.path).promoted
    monkeypatch.setenv("PATH", "/nonexistent")  # no compiler is needed the second time
    assert load(OP, DIMS, BIN, ARCH, set=target.path).promoted


def test_a_damaged_cache_is_made_again(target: SetPath, as_if_here: None, tmp_path: Path) -> None:
    load(OP, DIMS, BIN, ARCH, set=target.path)
    (cached,) = (tmp_path / "cache" / "objects").iterdir()
    cached.write_bytes(b"damaged")
    assert load(OP, DIMS, BIN, ARCH, set=target.path).promoted


def no_manifest(target: SetPath) -> None:
    (target.path / "manifest.json").unlink()


def folder_as_manifest(target: SetPath) -> None:
    no_manifest(target)
    (target.path / "manifest.json").mkdir()


def flipped_manifest(target: SetPath) -> None:
    data = bytearray((target.path / "manifest.json").read_bytes())
    data[len(data) // 2] ^= 1
    (target.path / "manifest.json").write_bytes(data)


def newer_manifest(target: SetPath) -> None:
    path = target.path / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"kgen.manifest/1", b"kgen.manifest/9"))


def the_object(target: SetPath) -> Path:
    (path,) = (target.path / "objects").iterdir()
    return path


def other_object(target: SetPath) -> None:
    the_object(target).write_bytes(compress(b"other"))


def truncated_object(target: SetPath) -> None:
    the_object(target).write_bytes(the_object(target).read_bytes()[:-9])


DOUBTS: dict[str, tuple[Callable[[SetPath], object], str]] = {
    "no manifest": (no_manifest, "no kernel is promoted"),
    "no set": (lambda t: shutil.rmtree(t.path), "no kernel is promoted"),
    "rolled back": (lambda t: rollback(t, OP), "no kernel is promoted"),
    "flipped bit": (flipped_manifest, "manifest.json"),
    "newer schema": (newer_manifest, "upgrade kgen"),
    "not JSON": (lambda t: (t.path / "manifest.json").write_bytes(b"\0\xff"), "damaged"),
    "object missing": (lambda t: the_object(t).unlink(), "missing"),
    "object exchanged": (other_object, "not the recorded one"),
    "object truncated": (truncated_object, "damaged"),
    "manifest is a folder": (folder_as_manifest, "missing"),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_each_doubt_about_the_set_gives_the_stock_op_and_one_line(
    target: SetPath, as_if_here: None, caplog: pytest.LogCaptureFixture, doubt: str
) -> None:
    break_it, reason = DOUBTS[doubt]
    break_it(target)
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, reason)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_gives_the_stock_op(target: SetPath, caplog: pytest.LogCaptureFixture) -> None:
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, "no CUDA GPU")


@pytest.mark.parametrize("here", ["sm_80", "sm_103", "sm_9", "sm_900"])
def test_another_gpu_gives_the_stock_op(
    target: SetPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, here: str
) -> None:
    monkeypatch.setattr(sys.modules["kgen.serve.load"], "device_capability", lambda: here)
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, f"has {here}")


def test_an_arch_without_kernel_gives_the_stock_op(
    target: SetPath, as_if_here: None, caplog: pytest.LogCaptureFixture
) -> None:
    check_stock(load(OP, DIMS, BIN, "sm_103a", set=target.path), caplog, "no kernel is promoted")


def test_no_c_compiler_gives_the_stock_op(
    target: SetPath, as_if_here: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, "no C compiler")


def test_an_object_that_cannot_be_linked_gives_the_stock_op(
    tmp_path: Path, as_if_here: None, caplog: pytest.LogCaptureFixture
) -> None:
    case = make_case("junk", {BIN: WIN}, op_contract=CONTRACT.contract_sha256(), objects={BIN: b"not an object\n\n"})
    target = fill(tmp_path / "set", case, current=CURRENT)
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, "could not link")


def test_an_object_without_the_function_gives_the_stock_op(
    tmp_path: Path, native: bytes, as_if_here: None, caplog: pytest.LogCaptureFixture
) -> None:
    case = make_case("name", {BIN: WIN}, op_contract=CONTRACT.contract_sha256(), objects={BIN: native})
    case = replace(case, builds=tuple(replace(b, function="another") for b in case.builds))
    target = fill(tmp_path / "set", case, current=CURRENT)
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, "another")


def test_a_changed_op_contract_gives_the_stock_op(
    tmp_path: Path, native: bytes, as_if_here: None, caplog: pytest.LogCaptureFixture
) -> None:
    old = Current({OP: "0" * 64}, 1)
    target = fill(tmp_path / "set", make_case("old", {BIN: WIN}, op_contract="0" * 64), current=old)
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, "another contract")


def test_an_unwritable_cache_gives_the_stock_op(
    target: SetPath, as_if_here: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KGEN_CACHE", "/proc/nowhere")
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, "/proc/nowhere")


def test_kgen_disable_gives_the_stock_op(
    target: SetPath, as_if_here: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KGEN_DISABLE", "1")
    check_stock(load(OP, DIMS, BIN, ARCH, set=target.path), caplog, "KGEN_DISABLE")


@pytest.mark.parametrize("value", ["", "0"])
def test_kgen_disable_can_be_off(
    target: SetPath, as_if_here: None, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("KGEN_DISABLE", value)
    assert load(OP, DIMS, BIN, ARCH, set=target.path).promoted


def test_more_tokens_than_the_largest_bin_give_the_stock_op_at_the_true_count(
    target: SetPath, as_if_here: None, caplog: pytest.LogCaptureFixture
) -> None:
    served = load(OP, DIMS, 65, ARCH, set=target.path)
    assert served.problem.tokens == 65
    check_stock(served, caplog, "exceed the largest bin")


def test_a_kgen_set_variable_chooses_the_set(
    target: SetPath, as_if_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGEN_SET", str(target.path))
    assert load(OP, DIMS, BIN, ARCH).promoted


@pytest.mark.parametrize("tokens", [1, 2, 5, 9, 33, 64])
def test_the_bin_is_the_smallest_that_holds_the_true_count(target: SetPath, tokens: int) -> None:
    assert load(OP, DIMS, tokens, ARCH, set=target.path).problem.tokens == CONTRACT.bin_for(tokens)


USAGE: dict[str, tuple[tuple[str, str, int, str], str]] = {
    "op": (("unheard_of", DIMS, 1, ARCH), "unknown op"),
    "dims": ((OP, "huge", 1, ARCH), "no dims"),
    "tokens": ((OP, DIMS, 0, ARCH), "0 tokens"),
}


@pytest.mark.parametrize("what", USAGE)
def test_a_call_that_has_no_stock_op_either_is_one_line(what: str) -> None:
    (op, dims, tokens, arch), text = USAGE[what]
    with pytest.raises(ValueError, match=text) as caught:
        load(op, dims, tokens, arch)
    assert "\n" not in str(caught.value)


def wrong_rows(v: Values) -> None:
    v["m"] = v["m"][:5]  # type: ignore[index]


@pytest.mark.parametrize("promoted", [True, False])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda v: v.pop("y"), r"tensor 'y' must be \(16, 256\) torch.bfloat16, is missing"),
        (wrong_rows, r"tensor 'm' must be \(16, 256\) torch.bfloat16, is \(5, 256\)"),
        (lambda v: v.update(m=v["m"].float()), r"tensor 'm' .* is \(16, 256\) torch.float32"),
    ],
)
def test_wrong_tensors_are_named_the_same_way_on_both_paths(
    target: SetPath,
    as_if_here: None,
    monkeypatch: pytest.MonkeyPatch,
    promoted: bool,
    change: Callable[[Values], object],
    text: str,
) -> None:
    monkeypatch.setenv("KGEN_DISABLE", "0" if promoted else "1")
    served = load(OP, DIMS, BIN, ARCH, set=target.path)
    assert served.promoted is promoted
    v = values(served)
    change(v)
    with pytest.raises(ValueError, match=text):
        served(v)


@pytest.mark.parametrize("variant", REGISTRY.get("attn_res").axes["variant"])
def test_the_stock_path_writes_states_in_place(tmp_path: Path, variant: str) -> None:
    served = load("attn_res", DIMS, 3, ARCH, set=tmp_path, axes={"variant": variant})
    v = {**served.op.inputs(served.problem, "write", 2, "cpu"), **served.outputs("cpu")}
    expected = served.op.stock(served.problem)(v)
    got = served(v)
    assert set(got) == {"out", "prefix", "blocks"}
    assert all(got[name] is v[name] and torch.equal(got[name], expected[name]) for name in got)


def test_a_missing_scalar_is_named(tmp_path: Path) -> None:
    served = load("attn_res", DIMS, 1, ARCH, set=tmp_path)
    v = {**served.op.inputs(served.problem, "normal", 2, "cpu"), **served.outputs("cpu")}
    del v["nb"]
    with pytest.raises(ValueError, match="scalar 'nb' is missing"):
        served(v)


def test_the_stored_object_is_what_the_promotion_measured(target: SetPath, native: bytes) -> None:
    kernels = KernelSet(target.path)
    (sha256,) = kernels.manifest().promotions[0].objects.values()
    assert kernels.object(sha256) == native and sha256 == sha256_bytes(native)
    assert kernels.evidence(kernels.manifest().promotions[0]).hmac and KEY


def test_serving_imports_neither_compiler_nor_clients() -> None:
    code = (
        "import sys, kgen.serve;"
        "print([m for m in ('cutlass', 'openai', 'langgraph', 'kgen.gates', 'kgen.promotion') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
