"""Corners of the judging modules that no case of their own tests reaches: lease times, steps, flags, odd attributes."""

import contextlib
import lzma
import os
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support.checkout import ROOT
from support.trial import PLAIN, run, trial

from kgen.contract import DTYPES, Role, TensorSpec
from kgen.gates import judge, localise, numeric, perf, perf_judge, sanitizer, timing
from kgen.gates.audit import cubin as cubins
from kgen.gates.audit.elf import SHT_SYMTAB, Elf
from kgen.gates.audit.object import AuditError
from kgen.gates.audit.recorder import Recorder
from kgen.gates.gpu.lease import JUDGING_SECONDS
from kgen.gates.modeleval import distance
from kgen.gates.modeleval.breach import AGREEMENT, LOGITS, Breach, Finding, ordered
from kgen.gates.modeleval.exercise import Way
from kgen.gates.modeleval.plan import DRAWN, SMALL
from kgen.gates.modeleval.sides import CANDIDATE, FLOAT64, MUTANT, OFF, STOCK, Part
from kgen.gates.modeleval.trial import _rank
from kgen.gates.runner.contestants import set_seed, set_values
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.numeric import Check
from kgen.gates.sandbox import NoSandboxError, choose
from kgen.ops import REGISTRY
from kgen.ops.moe_shared import MoeShared
from kgen.records import Problem

OBJECT = sorted((ROOT / "generated_kernels" / "objects").glob("*.o.xz"))[0]
MOE = REGISTRY.get("moe_shared")


@pytest.fixture(scope="module")
def sample() -> cubins.Cubin:
    ((image, data),) = cubins.embedded(lzma.decompress(OBJECT.read_bytes()))
    return cubins.read(data, image)


class Leases:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextlib.contextmanager
    def __call__(self, device: str, what: str, seconds: float) -> Iterator[None]:
        self.seconds.append(seconds)
        yield


@pytest.mark.parametrize("sanitize", [True, False])
def test_a_numeric_lease_lasts_for_the_job_the_sanitizer_and_the_judge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sanitize: bool
) -> None:
    leases, done = Leases(), object()
    monkeypatch.setattr(numeric, "leased", leases)
    monkeypatch.setattr(numeric, "_run_specs", lambda *_: done)
    specs = [stock_spec(MOE.problem("nano", 1, "sm_90a"))]
    got = numeric.run_specs(MOE, specs, cache=tmp_path, device="cpu", deadline=50.0, sanitize=sanitize)
    assert got is done
    assert leases.seconds == [50.0 + JUDGING_SECONDS + (sanitizer.ALL_SECONDS if sanitize else 0.0)]


def test_a_sweeps_lease_lasts_for_the_job_and_the_judge_and_a_cpu_is_of_any_arch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leases, done = Leases(), object()
    monkeypatch.setattr(perf, "leased", leases)
    monkeypatch.setattr(perf, "device_arch", lambda: "sm_100a")
    monkeypatch.setattr(perf, "_timed", lambda *_: done)
    specs = [stock_spec(MOE.problem("nano", 1, "sm_90a"))]
    assert perf.run_specs(MOE, specs, cache=tmp_path, device="cpu", dims=["nano"], deadline=50.0) is done
    assert leases.seconds == [50.0 + JUDGING_SECONDS]


def test_room_is_asked_for_as_many_sets_as_the_bytes_that_a_call_touches_need(monkeypatch: pytest.MonkeyPatch) -> None:
    op = REGISTRY.get("mla_kv_append")  # it allocates a cache and touches a row of it
    l2 = 1 << 20
    monkeypatch.setattr(timing, "l2_bytes", lambda device: l2)
    spec = stock_spec(op.problem("nano", 8, "sm_90a"))
    (job,) = [j for j in perf.make_jobs(op, [spec], (), {perf.GRAPH: 3}) if j.tokens == 8 and not j.scenario]
    sizes, present = op.sizes(spec.problem), op.present(spec.problem)

    def bytes_of(*roles: str) -> int:
        some = [t for t in present if not roles or t.role.value in roles]
        return sum(int(torch.Size(t.sizes(sizes)).numel()) * DTYPES[t.dtype].bytes for t in some)

    touched = op.cost(spec.problem).bytes
    sets = timing.sets_needed(touched, l2, bytes_of())
    assert touched < bytes_of() and sets != timing.sets_needed(bytes_of(), l2, bytes_of())
    calls = max(sets, timing.MIN_CALLS)
    states = bytes_of("state")
    assert perf._output_bytes(op, job, "cpu", 1 << 40) == 3 * calls * (bytes_of("out") + states)


def test_the_judge_of_consecutive_steps_counts_them_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    op = REGISTRY.get("kda_core")
    problem = op.problem("nano", 1, "sm_90a")
    said: list[int] = []

    def note(*given: Any) -> list[judge.Row]:
        said.append(given[-1])
        return []

    monkeypatch.setattr(judge, "judge_outputs", note)
    check = Check(0, numeric.FAMILY, op.families[0].name, seed=1, steps=4)
    numeric._judge_steps(op, problem, check, {0: {}, 2: {}, 3: {}}, "cpu", localise.Places())
    assert said == [1, 3, 4]


def test_how_long_the_judge_of_a_trial_took_is_a_time_of_this_trial() -> None:
    started = time.monotonic()
    made = trial()
    run(made)
    assert 0 <= made.evidence["seconds"]["judge"] <= time.monotonic() - started + 0.1


@pytest.mark.parametrize(("values", "middle"), [([10.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 10.0, 2.0], 3.0), ([7.0], 7.0)])
def test_the_middle_of_a_few_values(values: list[float], middle: float) -> None:
    assert float(distance._middle(torch.tensor(values))) == middle


@pytest.mark.parametrize(
    ("new", "flags", "sm", "accelerated"),
    [
        (True, 90 << 8 | 0x8, 90, True),
        (True, 90 << 8 | 0x1, 90, False),
        (True, 82 << 8 | 0x800, 90, False),  # a bit of the number there
        (False, 75 | 0x800, 75, True),
        (False, 75, 75, False),  # an odd number
        (False, 72 | 0x8, 72, False),
    ],
)
def test_only_one_bit_says_that_an_architecture_is_an_accelerated_one(
    sample: cubins.Cubin, new: bool, flags: int, sm: int, accelerated: bool
) -> None:
    data = bytearray(sample.data)
    data[8] = cubins.NEW_ABI - (not new)  # e_ident[EI_ABIVERSION] of a 64-bit ELF
    struct.pack_into("<I", data, 48, flags)  # e_flags
    found = cubins.read(bytes(data))
    assert (found.sm, found.accelerated) == (sm, accelerated)


def test_an_attribute_with_a_payload_of_its_own_is_read_past_it() -> None:
    sized = struct.pack("<BBH", cubins.SIZED, 5, 4) + b"\1\2\3\4"
    assert cubins._attributes(sized + struct.pack("<BBH", 1, 6, 7)) == [(5, b"\1\2\3\4"), (6, b"\7\0")]


def test_only_parameters_count_as_parameters(sample: cubins.Cubin, monkeypatch: pytest.MonkeyPatch) -> None:
    elf, read = Elf(sample.data), cubins._attributes
    name = sample.kernels[0].name
    common = cubins._by_symbol(elf)
    _, sizes = cubins._kernel(elf, name, common)
    strange = (0x7E, struct.pack("<IHHI", 0, 99, 0, 8 << 18))
    monkeypatch.setattr(cubins, "_attributes", lambda data: [*read(data), strange])
    assert cubins._kernel(elf, name, common)[1] == sizes == sample.parameters[name]


def test_symbols_have_the_kind_that_the_file_gives_them() -> None:
    elf = Elf(lzma.decompress(OBJECT.read_bytes()))
    (table,) = (s for s in elf.sections if s.type == SHT_SYMTAB)
    raw = elf.content(table)
    kinds = [(raw[at + 4] // 16, raw[at + 4] % 16) for at in range(0, len(raw), 24)]
    found = [(s.binding, s.type) for s in elf.symbols()]
    assert found == kinds and {kind % 2 for _, kind in kinds} == {0, 1}


def test_what_the_recorder_reads_may_be_read_by_another_user(
    sample: cubins.Cubin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        level = choose()
    except NoSandboxError as error:
        pytest.skip(str(error))
    seen: dict[str, int] = {}

    def note(recorder: Recorder, folder: Path, description: str) -> list[dict[str, Any]]:
        for path in (folder.parent, *folder.glob("kernel.*")):
            seen[path.name if path.is_file() else "parent"] = stat.S_IMODE(path.stat().st_mode)
        return []

    monkeypatch.setattr(Recorder, "_run", note)
    recorder, before = Recorder(level, tmp_path), os.umask(0o077)  # of a user who keeps his files to himself
    try:
        with pytest.raises(AuditError):  # nothing was launched
            recorder.record(lzma.decompress(OBJECT.read_bytes()), sample, ())
    finally:
        os.umask(before)
    assert seen == {"parent": 0o755, "kernel.o": 0o644, "kernel.fatbin": 0o644}


def test_calls_with_equal_scalars_are_one_pass_and_with_others_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    op = REGISTRY.get("mla_q")
    problem = op.problem("nano", 1, "sm_90a")
    values = op.inputs(problem, op.families[0].name, 1, "cpu")
    passes, whole = [], judge.expected

    def note(*given: Any) -> judge.Expected:
        passes.append(given[1].tokens)
        return whole(*given)

    monkeypatch.setattr(judge, "expected", note)
    judge.expected_many(op, problem, [values] * 3)
    assert passes == [3]
    judge.expected_many(op, problem, [values, values, {**values, "eps": 0.5}])
    assert passes == [3, 1, 1, 1]


X = TensorSpec("x", "f32", ("tokens", "hidden"), Role.IN, "x")
Y = TensorSpec("y", "f32", ("tokens", "hidden"), Role.OUT, "y")


class Doubles(MoeShared):
    """An op whose output is listed before its input."""

    tensors: ClassVar = (Y, X)

    def reference(self, problem: Problem, values: Any, rounded: bool) -> dict[str, torch.Tensor]:
        return {"y": values["x"].double() * 2}

    def stock(self, problem: Problem, compile: Any = None) -> Any:
        return lambda values: {"y": values["x"] * 2}


def test_an_output_that_is_listed_first_does_not_count_as_given() -> None:
    op = Doubles()
    many = [{"x": torch.full((2, 3), float(n))} for n in range(3)]
    got = judge.expected_many(op, op.problem("nano", 2, "sm_90a"), many)
    assert [float(answer.true["y"][0, 0]) for answer in got] == [0.0, 2.0, 4.0]
    assert [tuple(answer.stock["y"].shape) for answer in got] == [(2, 3)] * 3


@pytest.mark.parametrize("role", [Role.IN, Role.STATE])
def test_rows_of_requests_are_not_joined(role: Role) -> None:
    class Made(Doubles):
        tensors: ClassVar = (X, Y, TensorSpec("r", "f32", ("requests", "hidden"), role, "r"))

    assert not judge.joins(Made(), Made().problem("nano", 2, "sm_90a"))
    assert judge.joins(Doubles(), Doubles().problem("nano", 2, "sm_90a"))


def test_tensors_are_moved_by_name() -> None:
    given = {"a": torch.ones(2), "b": torch.zeros(1)}
    moved = judge.to_device(given, "cpu")
    assert moved.keys() == given.keys() and all(torch.equal(moved[n], given[n]) for n in given)


def test_rows_of_a_chain_name_the_seed_of_the_set_that_the_call_had() -> None:
    spec = stock_spec(MOE.problem("nano", 1, "sm_90a"))
    job = next(j for j in perf.make_jobs(MOE, [spec], (), {perf.CHAINED: 2}) if j.tokens == 1 and not j.scenario)
    sets = [set_values(MOE, spec.problem, "", job.seed, number, 1, "cpu") for number in range(2)]
    outputs = {"y": torch.zeros(2, 4, 1, MOE.dims["nano"]["hidden"], dtype=torch.bfloat16)}
    rows = perf_judge._judge_chained(MOE, job, sets, outputs, "cpu")
    assert [row.seed for row in rows if row.output] == [set_seed(job.seed, n) for n in (0,) * 4 + (1,) * 4]


def test_processes_start_by_how_long_they_take() -> None:
    kinds = (STOCK, CANDIDATE, FLOAT64, OFF, MUTANT)
    ranks = {(kind, model): _rank(Part(kind, model, ())) for kind in kinds for model in (SMALL, "slice-tp8")}
    assert [ranks[kind, SMALL] for kind in kinds] == [0, 0, 3, 3, 3]
    assert [ranks[kind, "slice-tp8"] for kind in kinds] == [2, 2, 1, 3, 3]


def test_a_part_without_exercises_is_none() -> None:
    parts = trial({DRAWN: (PLAIN,), SMALL: (replace(PLAIN, way=Way(SMALL)),)}).parts()
    assert all(part.exercises for part in parts) and OFF not in {part.kind for part in parts}


def test_of_several_breaches_the_gravest_names_the_verdict_and_the_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    grave, light = Breach(LOGITS, "far"), Breach(AGREEMENT, "fewer tokens")
    assert ordered([light, grave]) == [grave, light]
    made = trial()
    monkeypatch.setattr(made, "_numbers", lambda part, left: Finding((light, grave), {}))
    monkeypatch.setattr(made, "_rows", lambda part, left: Finding((grave, light), {}))
    verdict = run(made)
    assert verdict.code == LOGITS
    for seen in made.evidence["mutants"].values():
        assert (seen["code"], seen["first"], seen["breaches"]) == (LOGITS, "far", 2)
