"""The interpreter against silicon: what is committed belongs to the sources as they are, and the comparison bites.

Before a GPU was asked nothing is claimed: the page must say so. Afterwards kernels drawn anew each time are built and
interpreted again and compared with what the GPU wrote (all of them under `make deep`).
"""

import copy
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx_corpus.build import installed
from ptx_truth import bounds, compare, host, pack, page, standin
from ptx_truth.build import Made, build
from ptx_truth.cases import MAKERS, SERVED, SET, champion, make
from ptx_truth.entries import ARCH, Bound, Case, Tensor, bf16, numbers
from support.carried import TABLE

from kgen.gates.kit_wheels import HERE
from kgen.serve.runtime import torch_flavour
from kgen.store.kernelset import KernelSet

MEASURED = page.measured()
QUICK = [key for key in MAKERS if not key.startswith("moe_shared")]  # seconds each to build
SAMPLE = 2
PLANTED = ("scan", "mma")  # an integer output, and a float one with a bound


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {key: make(key) for key in MAKERS}


@pytest.fixture(scope="module")
def drawn() -> list[str]:
    return random.sample([key for key in QUICK if key not in PLANTED], SAMPLE if MEASURED else 0)


@pytest.fixture(scope="module")
def made(drawn: list[str]) -> dict[str, Made]:
    return build(make(key) for key in (*PLANTED, *drawn))


def row(case: Case, made: Made, spoil: Callable[[np.ndarray], None] | None = None) -> compare.Row:
    """Of the only output, when the GPU had written what the interpreter does, but for what `spoil` changes."""
    record = copy.deepcopy(standin.record(case, made))
    if spoil is not None:
        (name,) = case.outputs
        data = record["outputs"].pop(record["repetitions"][0][name])
        array = np.frombuffer(bytearray(standin.base64.b64decode(data)), case.tensors[name].array.dtype)
        spoil(array)
        record["outputs"]["spoilt"] = standin.base64.b64encode(array.tobytes()).decode()
        record["repetitions"] = [{name: "spoilt"}] * host.REPETITIONS
    (found,) = compare.compare(case, made, record).values()
    return found


# --- what is committed


def test_the_page_says_what_was_measured_or_that_nothing_was(cases: dict[str, Case]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.markdown(cases.values(), MEASURED), "cd tests && python -m ptx_truth.page"
    assert ("Not measured yet" in text) == (MEASURED is None)
    assert page.SILICON.exists() == (MEASURED is not None)


def test_what_was_measured_is_of_the_sources_and_inputs_as_they_are(cases: dict[str, Case]) -> None:
    if MEASURED is None:
        assert "Not measured yet" in page.PAGE.read_text(encoding="utf-8")
        return
    now = {key: (c.source_sha256, c.inputs_sha256) for key, c in cases.items()}
    then = {key: (one["source_sha256"], one["inputs_sha256"]) for key, one in MEASURED["cases"].items()}
    assert now == then, page.AGAIN
    outputs = [(key, o["verdict"]) for key, one in MEASURED["cases"].items() for o in one["outputs"].values()]
    assert not [key for key, verdict in outputs if verdict == compare.RED]
    builds = {b.problem.key: b.kernels for b in KernelSet(SET).builds(champion())}
    code = {k.name: k.code_sha256 for k in builds[SERVED]}
    assert MEASURED["cases"]["moe_shared_k3_t1"]["code"] == code, f"not what was promoted: {page.AGAIN}"
    assert MEASURED["environment"]["arch"] == ARCH


def as_measured(keys: Sequence[str], made: dict[str, Made]) -> None:
    """These kernels are built to what the GPU ran, and the interpreter of today agrees with it as the table says."""
    assert MEASURED is not None
    silicon = compare.load(page.SILICON)["cases"]
    for key in keys:
        case, then = make(key), MEASURED["cases"][key]
        if MEASURED["compiler"] == installed():
            assert not compare.stale(case, made[key], silicon[key]), page.AGAIN
        rows = compare.compare(case, made[key], silicon[key])
        assert compare.summary(case, silicon[key], rows) == then, page.AGAIN


def test_kernels_drawn_at_random_agree_with_the_gpu_as_the_table_says(drawn: list[str], made: dict[str, Made]) -> None:
    assert bool(drawn) == (MEASURED is not None)
    if drawn:
        as_measured(drawn, made)


@pytest.mark.deep
def test_all_kernels_agree_with_the_gpu_as_the_table_says() -> None:
    if MEASURED is None:
        assert "Not measured yet" in page.PAGE.read_text(encoding="utf-8")
        return
    as_measured(list(MAKERS), build(make(key) for key in MAKERS))


def test_the_kinds_that_were_asked_for_are_there(cases: dict[str, Case]) -> None:
    said = " | ".join(c.kind for c in cases.values())
    for kind in ("mma.sync", "wgmma", "TMA", "cp.async", "shared memory", "atomics", "cluster", "MXFP4", "in-place"):
        assert kind in said
    assert len(cases) >= 14 and {c.key for c in cases.values()} == set(cases)


# --- the comparison


def test_what_is_equal_is_equal(made: dict[str, Made]) -> None:
    for key in PLANTED:
        found = row(make(key), made[key])
        assert (found.verdict, found.differing, found.differing_bits) == (compare.EQUAL, 0, 0)


def test_one_flipped_bit_of_an_integer_is_red(made: dict[str, Made]) -> None:
    def flip(array: np.ndarray) -> None:
        array[5] ^= 1 << 20

    found = row(make("scan"), made["scan"], flip)
    assert (found.verdict, found.differing, found.differing_bits) == (compare.RED, 1, 1)
    assert "(5,)" in found.why


@pytest.mark.parametrize(("units", "verdict"), [(0.4, compare.BOUNDED), (3.0, compare.RED)])
def test_a_sum_may_differ_within_its_bound_only(units: float, verdict: str, made: dict[str, Made]) -> None:
    case = make("mma")
    low, high = case.bounds["y"].interval(case.numbers())

    def move(array: np.ndarray) -> None:
        array[17] += np.float32(units * (high - low).reshape(-1)[17])

    found = row(case, made["mma"], move)
    assert (found.verdict, found.differing) == (verdict, 1), found.why
    if verdict == compare.BOUNDED:
        assert found.worst == pytest.approx(units, rel=0.2)


def test_a_number_for_a_nan_and_the_other_way_round_is_red(made: dict[str, Made]) -> None:
    def spoil(array: np.ndarray) -> None:
        array[0] = np.nan

    assert row(make("mma"), made["mma"], spoil).verdict == compare.RED


def test_where_only_one_number_is_right_its_neighbour_is_red() -> None:
    tensor, one = Tensor("out", np.zeros(2, np.uint16)), np.array([1.0, 1.0])
    bound = Bound("", lambda _: (one, np.array([1.0, 1.0 + 2**-7])))
    ours, theirs = bf16(one), bf16(np.array([1.0, 1.0 + 2**-7]))
    assert compare.judge(tensor, bound, {}, ours, theirs).verdict == compare.BOUNDED
    assert compare.judge(tensor, bound, {}, theirs[::-1].copy(), ours).verdict == compare.RED


def test_a_failed_case_other_launches_and_another_ptx_are_red_or_stale(made: dict[str, Made]) -> None:
    case, good = make("scan"), standin.record(make("scan"), made["scan"])
    assert not compare.stale(case, made["scan"], good)
    for name in compare.SAME:
        assert name in compare.stale(case, made["scan"], {**good, name: "other"})
    twice = {name: 2 * n for name, n in good["counts"].items()}
    for changed in ({"error": "killed after 20 s"}, {"counts": twice}):
        (found,) = compare.compare(case, made["scan"], {**good, **changed}).values()
        assert found.verdict == compare.RED


# --- the bounds, on numbers worked out by hand


def test_bound_of_a_sum_of_products() -> None:
    a, b = np.array([[1.0, 2.0]]), np.array([[4.0, -8.0]])
    low, high = bounds.product(a, b, bounds.Chain(2.0**-4, 1, 1, 1))
    # 4 in the first step, 16 and what stood there, 4, in the second: 24 units of 2^-4, and rounding
    assert (low[0, 0] + high[0, 0]) / 2 == -12
    assert 1.5 <= (high - low)[0, 0] / 2 <= 1.5 * 1.02


def test_bound_of_sums_in_any_order() -> None:
    low, high = bounds.sums(lambda v: v["x"], {"x": np.array([[8.0], [-8.0], [1.0]])})
    assert 2 * 17 * 2.0**-24 <= high[0] - 1 <= 2 * 17 * 2.0**-24 * 1.01 and low[0] + high[0] == 2


def test_bounds_of_approximate_functions_are_those_of_the_isa() -> None:
    value = np.array([0.75])
    assert bounds.error("ex2.approx.f32", value)[0] == 2 * 2.0**-24  # two steps of a float32 in [0.5, 1)
    assert bounds.error("tanh.approx.f32", value)[0] == 0.75 * 2.0**-11
    assert bounds.error("sin.approx.f32", value)[0] == 2.0**-20.5
    assert bounds.error("lg2.approx.f32", 40 * value)[0] == 30 * 2.0**-22


def test_numbers_round_to_the_nearest_bf16() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1.0, 3.3895313892515355e38])
    assert numbers("bf16", bf16(ties)).tolist() == [1.0, 1 + 2**-6, -1.0, 3.3895313892515355e38]


@pytest.mark.parametrize("key", PLANTED[1:])
def test_the_interpreter_is_within_every_bound(key: str, made: dict[str, Made]) -> None:
    case = make(key)
    found = standin.interpret(case, made[key], 3)
    assert not found.complaint
    for name, bound in case.bounds.items():
        low, high = bound.interval(case.numbers())
        value = numbers(case.tensors[name].dtype, found.outputs[name])
        assert ((low <= value) & (value <= high)).all()


# --- the file that is carried

WORKER = """
import json, os, sys, time
print(json.dumps({"environment": {"gpu": "none"}}), flush=True)
for key in sys.argv[1:]:
    if key == "--worker":
        continue
    if key == "hangs":
        time.sleep(60)
    if key == "dies":
        sys.stderr.write("an illegal memory access\\n")
        os._exit(9)
    print("not json", json.dumps({}), flush=True)
    error = "CUDA error" if key == "fails" else ""
    record = {"key": key, "error": error, "seconds": 0.1, "repetitions": [], "outputs": {}, "counts": {}}
    print(json.dumps(record), flush=True)
    if error:
        break
print(json.dumps({"done": True}))
"""


def test_a_case_that_hangs_or_dies_or_fails_does_not_stop_the_others() -> None:
    said: list[str] = []
    keys = ["first", "hangs", "second", "dies", "fails", "third"]
    got = list(host.gather([sys.executable, "-c", WORKER], keys, said.append, start=10, each=1, whole=60))
    found = {r["key"]: r["error"] for r in got if "key" in r}
    assert list(found) == keys
    assert [found[k] for k in ("first", "second", "third")] == ["", "", ""]
    assert found["fails"] == "CUDA error"
    assert found["hangs"] == "killed after 1 s"
    assert "status 9" in found["dies"] and "illegal memory access" in found["dies"]
    assert len(said) == len(keys)


def test_the_result_says_what_ran_and_names_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("object_sha256", "ptx_sha256", "code", "source_sha256", "inputs_sha256")
    info = {"digest": "d", "cases": [{"key": key, **{n: f"{key} {n}" for n in names}} for key in ("first", "fails")]}
    command, target = [sys.executable, "-c", WORKER], tmp_path / "result.json.xz"
    assert host.main([str(target)], tmp_path, info, command) == 1
    result = compare.load(target)
    assert {key: one["error"] for key, one in result["cases"].items()} == {"first": "", "fails": "CUDA error"}
    assert result["cases"]["first"]["ptx_sha256"] == "first ptx_sha256" and result["environment"] == {"gpu": "none"}
    assert "1 of 2 cases ran" in capsys.readouterr().out
    assert host.main([str(target), "third"], tmp_path, info, command) == 2
    assert "no case third; there are first, fails" in capsys.readouterr().err
    assert host.main([str(target), "first"], tmp_path, info, command) == 0


def test_cases_are_given_up_when_the_time_is_over() -> None:
    got = list(host.gather([sys.executable, "-c", WORKER], ["first"], lambda _: None, whole=-1))
    assert [r["error"] for r in got] == ["not run: -1 s are over"]


@pytest.fixture(scope="module")
def packed(made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two cases, for this Python, without the CuTe runtime: half a minute of compression."""
    folder = tmp_path_factory.mktemp("pack")
    chosen = {key: make(key) for key in PLANTED}
    pack.pack(folder / "truth.pyz", chosen, {key: made[key] for key in PLANTED}, folder, (HERE,), ())
    return folder / "truth.pyz"


@pytest.mark.skipif(torch_flavour() != "", reason="needs a torch without CUDA")
def test_without_a_gpu_the_file_says_so_in_one_line(packed: Path) -> None:
    command = [sys.executable, str(packed), "out.json.xz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{packed.name}: no CUDA GPU")


def test_the_file_holds_what_a_worker_reads(packed: Path) -> None:
    import json
    import zipfile

    with zipfile.ZipFile(packed) as archive:
        info: dict[str, Any] = json.loads(archive.read(TABLE))
    paths = {f["path"] for f in info["files"]}
    for case in info["cases"]:
        assert f"objects/{case['object_sha256']}.o" in paths
        assert {f"inputs/{t[3]}" for t in case["tensors"]} <= paths
        assert set(case["outputs"]) <= {t[0] for t in case["tensors"]}
    assert {"lib/ptx_truth_host.py", "lib/kgen/serve/launcher.py", "lib/kgen/serve/launch_counter.c"} <= paths


def test_host_runs_with_the_standard_library_torch_and_serve_only() -> None:
    command = [sys.executable, "-I", "-S", "-c", f"import runpy; runpy.run_path({host.__file__!r})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_way_from_a_result_to_the_page(made: dict[str, Made], tmp_path: Path) -> None:
    chosen = {key: make(key) for key in PLANTED}
    host.write(tmp_path / "result.json.xz", standin.result(chosen, made))
    result = compare.load(tmp_path / "result.json.xz")
    found = {
        k: compare.summary(c, result["cases"][k], compare.compare(c, made[k], result["cases"][k]))
        for k, c in chosen.items()
    }
    text = page.markdown(chosen.values(), {"environment": result["environment"], "compiler": "c", "cases": found})
    assert "2 cases, 2 outputs: 2 equal to the bit, 0 within their bounds, 0 red." in text.replace("\n", " ")
    assert "Not measured yet" not in text
