"""Real builds of arguments that are not wholly static: sizes known at run time, free first strides, every dtype.

Without a GPU the launch recorder shows what a finished object takes and hands on: the same object is called with other
numbers of blocks and other distances between them. Not covered: what the kernels compute.
"""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from support.builds import shared

from kgen.contract import DTYPES, Op, Role
from kgen.gates.audit import object as objects
from kgen.gates.audit.object import AuditError
from kgen.gates.audit.recorder import DLPACK, Argument, Recorder
from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate, CompileReport, same_code
from kgen.gates.signature import arguments, signature
from kgen.ops import REGISTRY
from kgen.records import Candidate, Launch, Origin, Problem

CANDIDATES = Path(__file__).parent / "candidates"
APPEND = (CANDIDATES / "mla_kv_append.py").read_text()
CORE = (CANDIDATES / "kda_core_touch.py").read_text()
SOURCES = {"mla_kv_append": APPEND, "kda_core": CORE}


@pytest.fixture(scope="module")
def builder() -> Builder:
    return shared()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def recorder(builder: Builder, cache: Path) -> Recorder:
    return Recorder(builder.level, cache / "recorder")


def point(op: str, tokens: int = 8, dims: str = "nano", **axes: str) -> Problem:
    return REGISTRY.get(op).problem(dims, tokens, "sm_90a", axes)


def built(builder: Builder, cache: Path, source: str, *problems: Problem, fresh: bool = False) -> CompileReport:
    op = REGISTRY.get(problems[0].op)
    with CompileGate(op, cache, builder, fresh=fresh) as gate:
        return gate.run(Candidate(op.name, source, Origin("test")), problems)


def recorded(recorder: Recorder, report: CompileReport, *changed: Argument) -> tuple[Launch, ...]:
    """One call of a built object with some of its arguments changed."""
    artefact = report.artefacts[0]
    problem, data = artefact.record.problem, artefact.object.read_bytes()
    by_name = {a.name: a for a in changed}
    call = [by_name.get(a.name, a) for a in arguments(REGISTRY.get(problem.op), problem, artefact.record.workspaces)]
    return recorder.record(data, objects.check(data, problem.arch), call)


def argument(report: CompileReport, name: str) -> Argument:
    problem = report.artefacts[0].record.problem
    return next(a for a in arguments(REGISTRY.get(problem.op), problem, ()) if a.name == name)


def fields(launch: Launch, name: str) -> tuple[int, ...]:
    """The 64-bit fields of a kernel parameter that points into this tensor: its address, then what is not static."""
    raw = bytes.fromhex(next(a for a in launch.args if a.tensor == name).raw)
    return struct.unpack(f"<{len(raw) // 8}Q", raw)


def touching(op: Op, problem: Problem) -> str:
    """A candidate that takes every argument and writes one element of what is written: numbers mean nothing."""
    present, scalars = op.present(problem), op.scalars
    names = [*(f"a{i}" for i in range(len(present))), *(f"s{i}" for i in range(len(scalars)))]
    kinds = [*("cute.Tensor" for _ in present), *({"i32": "Int32", "f32": "Float32"}[s.dtype] for s in scalars)]
    parameters = ", ".join(f"{n}: {kind}" for n, kind in zip(names, kinds, strict=True))
    first = [f"a{i}[{', '.join('0' for _ in t.shape)}]" for i, t in enumerate(present)]
    written = [i for i, t in enumerate(present) if t.role in (Role.OUT, Role.STATE)]
    return f"""import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Float32, Int32


@cute.kernel
def kernel({parameters}):
    seen = {" + ".join(f"{element}.to(Float32)" for element in first)}
{"".join(f"    {first[i]} = seen.to(a{i}.element_type){chr(10)}" for i in written)}

@cute.jit
def host({parameters}, stream: cuda.CUstream):
    kernel({", ".join(names)}).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
"""


def corners(op: Op) -> list[Problem]:
    """The defaults, and each other value of one axis, at 8 tokens."""
    chosen: list[dict[str, str]] = [{}, *({name: value} for name, values in op.axes.items() for value in values[1:])]
    return [op.problem("nano", 8, "sm_90a", axes) for axes in chosen]


@pytest.mark.parametrize("name", sorted(REGISTRY.ops))
def test_every_op_builds_with_all_of_its_arguments_at_every_value_of_its_axes(
    name: str, builder: Builder, cache: Path
) -> None:
    op = REGISTRY.get(name)
    for problem in corners(op):
        report = built(builder, cache, touching(op, problem), problem)
        assert report.result.passed, report.result.message
        (launch,) = report.artefacts[0].record.launches
        assert [a.tensor for a in launch.args if a.tensor] == [t.name for t in op.present(problem)]
        assert len(launch.args) == len(op.present(problem)) + len(op.scalars)
    assert {DTYPES[t.dtype].name for t in op.tensors} <= set(DLPACK)


@pytest.mark.parametrize("name", ["lm_head_argmax", "mla_kv_append", "mla_q", "moe_router", "oproj_partial"])
def test_a_tile_of_any_ops_first_output_can_be_scaled(name: str, builder: Builder, cache: Path) -> None:
    op = REGISTRY.get(name)
    problem = op.problem("nano", 8, "sm_90a")
    with CompileGate(op, cache, builder) as gate:
        report = gate.run(Candidate(name, touching(op, problem), Origin("test")), [problem], "tile_scale")
    assert report.result.passed, report.result.message
    launches = report.artefacts[0].record.launches
    scaled = next(a.tensor for a in launches[-1].args if a.tensor)
    assert len(launches) == 2 and not next(t for t in op.present(problem) if t.name == scaled).dtype.startswith("i")


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize("dims", ["k3-tp8", pytest.param("k3-tp16", marks=pytest.mark.deep)])
def test_the_candidates_with_states_build_at_served_dims(name: str, dims: str, builder: Builder, cache: Path) -> None:
    problems = [p for t in (1, 64) for p in REGISTRY.get(name).points(dims, t, "sm_90a")]
    report = built(builder, cache, SOURCES[name], *problems)
    assert report.result.passed, report.result.message
    assert {k.stack_bytes for a in report.artefacts for k in a.record.kernels} == {0}


@pytest.mark.parametrize(("kind", "bytes_each"), [("bf16", 2), ("e4m3", 1)])
def test_a_paged_write_takes_any_number_of_blocks_and_any_distance_between_them(
    kind: str, bytes_each: int, builder: Builder, cache: Path, recorder: Recorder
) -> None:
    report = built(builder, cache, APPEND, point("mla_kv_append", cache=kind))
    assert report.result.passed, report.result.message
    (launch,) = report.artefacts[0].record.launches
    assert (launch.grid, launch.block) == ((8, 1, 1), (128, 1, 1))
    old = argument(report, "cache")
    assert old.shape == (4, 64, 576)
    assert fields(launch, "cache")[1:] == (4, 64 * 576)
    for blocks, pitch in ((1, 64 * 576), (70_000, 64 * 576), (9, 64 * 576 + 16 // bytes_each), (5, 3 * 64 * 576)):
        (other,) = recorded(recorder, report, replace(old, shape=(blocks, 64, 576), pitch=pitch))
        assert fields(other, "cache")[1:] == (blocks, pitch)
        assert replace(other, args=()) == replace(launch, args=())
        changed = [a.tensor for a, b in zip(launch.args, other.args, strict=True) if a != b]
        assert changed == ["cache"]


WRONG = [  # what of the cache is changed, words of the refusal
    ({"shape": (4, 32, 576)}, "cache"),
    ({"shape": (4, 64, 512)}, "cache"),
    ({"pitch": 64 * 576 + 4}, "divisible"),
    ({"dtype": "f16"}, "Float8E4M3FN|float8_e4m3fn|dtype"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_call_with_another_page_width_or_dtype_is_refused_by_the_object(
    change: dict[str, object], words: str, builder: Builder, cache: Path, recorder: Recorder
) -> None:
    report = built(builder, cache, APPEND, point("mla_kv_append", cache="e4m3"))
    with pytest.raises(AuditError, match=words):
        recorded(recorder, report, replace(argument(report, "cache"), **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("q", ["1", "4", "8"])
def test_state_slots_are_a_run_time_size_that_all_states_share(
    q: str, builder: Builder, cache: Path, recorder: Recorder
) -> None:
    report = built(builder, cache, CORE, point("kda_core", q=q))
    assert report.result.passed, report.result.message
    names = {a.tensor for a in report.artefacts[0].record.launches[0].args}
    assert "slots" in names and "accepted" not in names, "what no kernel takes is no parameter"
    conv, state = argument(report, "conv"), argument(report, "s")
    taps, pitch = 3 + int(q) - 1, 2 * 128 * 128 + 4
    assert conv.shape == (11, 768, taps) and state.shape == (11, 2, 128, 128)
    for slots in (1, 4097):
        more = replace(conv, shape=(slots, 768, taps)), replace(state, shape=(slots, 2, 128, 128), pitch=pitch)
        halve, look = recorded(recorder, report, *more)
        assert fields(halve, "conv")[1:] == (slots, 768 * taps)
        assert fields(halve, "s")[1:] == fields(look, "s")[1:] == (slots, pitch)
        assert (halve.grid, look.grid) == ((8, 1, 1), (slots, 1, 1))
    with pytest.raises(AuditError, match="shape"):
        recorded(recorder, report, replace(conv, shape=(12, 768, taps)))


def test_a_free_inner_size_moves_the_stride_of_the_rows_before_it(
    builder: Builder, cache: Path, recorder: Recorder
) -> None:
    problem = point("mla_decode")
    report = built(builder, cache, touching(REGISTRY.get("mla_decode"), problem), problem)
    assert report.result.passed, report.result.message
    for wide in (1, 17, 8192):
        (launch,) = recorded(recorder, report, replace(argument(report, "block_table"), shape=(8, wide)))
        assert set(fields(launch, "block_table")[1:]) == {wide}


def test_sizes_of_run_time_are_not_told_to_the_candidate(builder: Builder, cache: Path) -> None:
    for name in ("mla_kv_append", "kda_core", "mla_decode"):
        op = REGISTRY.get(name)
        told = signature(op, point(name)).dims
        assert not set(told) & set(op.runtime_dims)
        assert set(told) == (set(op.sizes(point(name))) | set(op.axes)) - set(op.runtime_dims)
    curious = APPEND.replace('dims["page"], dims["row"]', 'dims["page"], dims["blocks"]')
    assert curious != APPEND
    report = built(builder, cache, curious, point("mla_kv_append"))
    assert report.result.code == "compile.build" and "blocks" in report.result.message


def test_two_builds_of_a_kernel_with_free_sizes_are_the_same_to_the_byte(builder: Builder, cache: Path) -> None:
    """What a launch hands over must have no undefined bytes: records of two builds are compared."""
    first, again = (built(builder, cache, CORE, point("kda_core"), fresh=True).artefacts[0].record for _ in range(2))
    assert same_code(first, again) == "" and first.launches == again.launches
    assert first.object_sha256 == again.object_sha256


def test_the_first_written_tensor_is_an_output_of_numbers_or_else_a_state() -> None:
    """Indices are passed over: the mutation test scales what is chosen here."""
    for name, op in REGISTRY.ops.items():
        problem = point(name)
        present, chosen = op.present(problem), signature(op, problem).first_out
        roles = ["" if t.dtype in ("i32", "i64") else t.role.value for t in present]
        assert chosen == roles.index("out" if "out" in roles else "state"), name
