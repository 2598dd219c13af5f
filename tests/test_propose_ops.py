"""`kgen propose` for every op: axes, dims that share sizes, points that an op refuses, prompts, who can propose.

The projections' kernel family goes through the real compile gate here. Not covered: its numbers, which need a GPU.
"""

import inspect
import json
import random
from pathlib import Path

import pytest
from support.builds import shared
from support.loops import called
from support.requests import request

from kgen.contract import Op
from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate, same_code
from kgen.gates.contract import DEFECTS
from kgen.gates.screen import screen
from kgen.loop import matrix
from kgen.loop.settings import ARCHS, Settings, read_settings
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, render
from kgen.proposers.render import packaged
from kgen.proposers.search import SearchProposer
from kgen.records import Candidate, Origin, PerfPoint, Verdict, to_json

ALL = sorted(REGISTRY.ops)
SEARCHED = sorted(FAMILIES)


def settings(op: str, **more: object) -> Settings:
    return Settings(op, "mailbox", **more).checked(REGISTRY.get(op))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_the_default_matrix_of_every_op_is_what_it_serves_at_its_default_axes(name: str) -> None:
    op, chosen = REGISTRY.get(name), settings(name)
    problems = matrix.full(op, chosen)
    assert chosen.dims == (*op.served, op.pack.small) and chosen.axes == {}
    assert {p.dims for p in problems} == set(chosen.dims) and {p.arch for p in problems} == set(ARCHS)
    assert {p.tokens for p in problems} == set(op.pack.bins)
    assert {tuple(p.axes.items()) for p in problems} == {tuple((k, v[0]) for k, v in op.axes.items())}
    assert {p.tokens for p in matrix.quick(op, chosen)} == set(op.pack.quick_bins)
    assert {p.key for p in matrix.mutants(op, chosen)} <= {p.key for p in problems}


@pytest.mark.parametrize(("name", "axis"), [(n, a) for n in ALL for a in REGISTRY.get(n).axes])
def test_any_value_of_any_axis_can_be_chosen_and_the_others_stay_at_their_default(name: str, axis: str) -> None:
    op = REGISTRY.get(name)
    for value in op.axes[axis]:
        chosen = settings(name, axes={axis: value})
        wanted = {**{k: v[0] for k, v in op.axes.items()}, axis: value}
        for problems in (matrix.full, matrix.quick, matrix.mutants, matrix.asked):
            assert problems(op, chosen)
            assert all(dict(p.axes) == wanted for p in problems(op, chosen))
        assert chosen.axes == ({} if value == op.axes[axis][0] else {axis: value})
        assert read_settings(to_json(chosen), "run.json") == chosen == chosen.checked(op)


def test_points_that_the_op_refuses_are_left_out_and_said() -> None:
    op = REGISTRY.get("mla_decode")
    asked = Settings("mla_decode", "mailbox", axes={"cache": "e4m3", "q": "4"})
    chosen = asked.checked(op)
    assert chosen.bins == (4, 8, 16, 32, 64)
    assert [p.tokens for p in matrix.quick(op, chosen)] == [8]
    assert sorted({p.tokens for p in matrix.mutants(op, chosen)}) == [4, 16, 64]
    (said,) = asked.remarks(op)
    assert said.startswith("left out: token bins 1, 2, 3, 5, 6, 7 (") and "1 tokens are no whole requests of 4" in said
    assert Settings("mla_decode", "mailbox").remarks(op) == ()


def test_the_quick_tier_falls_back_to_the_smallest_bin_that_exists() -> None:
    op = REGISTRY.get("kda_core")
    chosen = settings("kda_core", axes={"q": "8"}, bins=(2, 16, 32), dims=("nano",))
    assert [p.key for p in matrix.quick(op, chosen)] == ["kda_core/nano/t16/sm_90a/q=8"]


def test_dims_that_have_the_sizes_of_others_are_mapped_and_said() -> None:
    op = REGISTRY.get("mla_decode")
    asked = Settings("mla_decode", "mailbox", dims=("vllm-tp1", "k3-tp8", "nano"))
    assert asked.checked(op).dims == ("k3-tp8", "nano")
    (said,) = asked.remarks(op)
    assert "vllm-tp1" in said and "k3-tp8" in said
    own = Settings("moe_latent_down", "mailbox", dims=("vllm-tp1",))
    assert own.checked(REGISTRY.get("moe_latent_down")).dims == ("vllm-tp1",)
    assert own.remarks(REGISTRY.get("moe_latent_down")) == ()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"axes": {"q": "3"}}, "no q='3'; known: cache: bf16, e4m3; q: 1, 4, 8"),
        ({"axes": {"page": "64"}}, "no page='64'"),
        ({"axes": {"q": "4"}, "bins": (1, 2)}, "no point is left: mla_decode/k3-tp8/t1/"),
        ({"dims": ("tp8",)}, "no dims 'tp8'; known: k3-tp8, k3-tp16, nano, vllm-tp1"),
        ({"bins": (9,)}, "9 is not a token bin"),
    ],
)
def test_what_the_op_does_not_have_is_refused_in_one_line(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        settings("mla_decode", **wrong)
    assert words in str(caught.value) and "\n" not in str(caught.value)


CALLS = [  # arguments, words of the one line
    (["--op", "mla_decode", "--proposer", "mailbox", "--axis", "cache=f8"], "cache: bf16, e4m3"),
    (["--op", "mla_decode", "--proposer", "mailbox", "--axis", "cache"], "is not NAME=VALUE"),
    (["--op", "mla_decode", "--proposer", "mailbox", "--axis", "q=1", "--axis", "q=4"], "given twice"),
    (["--op", "mla_decode", "--proposer", "mailbox", "--axis", "q=8", "--tokens", "4"], "no whole requests of 8"),
    (["--op", "moe_shared", "--proposer", "mailbox", "--axis", "q=8"], "no axes at all"),
]


@pytest.mark.parametrize(("arguments", "words"), CALLS)
def test_a_wrong_axis_is_a_usage_error_and_leaves_no_run(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(["propose", *arguments, "--runs", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said and "\n" not in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("chosen", [[], ["--proposer", "search"]], ids=["default", "search"])
def test_an_op_without_a_kernel_family_says_who_can_propose_before_any_work(
    chosen: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ops have one: one is taken away."""
    name = "mla_q"
    monkeypatch.delitem(FAMILIES, name)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert called(["propose", "--op", name, *chosen, "--runs", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said and f"no kernel family for {name}" in said
    assert "--proposer mailbox" in said and "--proposer openai" in said
    assert not (tmp_path / "runs").exists()


def test_a_run_with_axes_asks_for_them_keeps_them_and_is_taken_up_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mailbox that nobody answers: the run waits (4), and says what it left out."""
    places = ["--runs", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache"), "--set", str(tmp_path / "set")]
    options = ["--axis", "q=4", "--axis", "cache=e4m3", "--dims", "vllm-tp1", "--minutes", "0.01"]
    assert called(["propose", "--op", "mla_decode", "--proposer", "mailbox", *options, *places]) == 4
    said = capsys.readouterr().err
    assert "left out: token bins 1, 2, 3, 5, 6, 7" in said and "vllm-tp1" in said
    (run,) = (tmp_path / "runs").glob("*-mla_decode-*")
    stored = json.loads((run / "run.json").read_text())["settings"]
    assert stored["axes"] == {"cache": "e4m3", "q": "4"} and stored["dims"] == ["k3-tp8"]
    prompt = (run / "mailbox" / "0001-prompt.md").read_text()
    assert "Token bins: 4, 8, 16, 32, 64." in prompt
    assert called(["resume", run.name, "--minutes", "0.02", *places]) == 4


def prompted(name: str, folder: Path, **axes: str) -> str:
    """What a proposer reads of this op."""
    problems = matrix.asked(REGISTRY.get(name), settings(name, axes=axes))
    return packaged().prompt(request(folder, name, problems=problems)).user


def test_the_prompt_of_a_run_shows_the_axis_values_and_all_dims_that_it_chose(tmp_path: Path) -> None:
    user = prompted("mla_decode", tmp_path, q="4", cache="e4m3")
    assert "This run builds at: cache=e4m3, lse=no, q=4." in user
    assert all(f"| {dims} | " in user for dims in ("k3-tp8", "k3-tp16", "nano"))
    assert "Token bins: 4, 8, 16, 32, 64." in user and "`requests`: 1 at 4 tokens, 16 at 64 tokens" in user


@pytest.mark.parametrize("name", ALL)
def test_the_prompt_of_every_op_says_what_is_not_static_how_it_is_judged_and_what_its_words_mean(
    name: str, tmp_path: Path
) -> None:
    op = REGISTRY.get(name)
    for axes in ({}, {axis: values[-1] for axis, values in op.axes.items()}):
        user = prompted(name, tmp_path, **axes)
        point = op.problem(op.pack.small, 64, "sm_90a", axes)
        for symbol in op.runtime_dims:
            assert f"`{symbol}` is known at run time only" in user
        for tensor in op.present(point):
            assert (f"`{tensor.name}`: the stride of the first dimension is free" in user) == tensor.pitched
            padded = f"Padding rows of `{tensor.name}` hold {tensor.padding}" in user
            assert padded == (tensor.padding is not None)
            assert (f"`{tensor.name}` is judged otherwise" in user) == (tensor.rule is not None)
        assert ("Every call must also keep the rules" in user) == (type(op).hard_rules is not Op.hard_rules)
        for module in op.shared:
            assert inspect.cleandoc(module.__doc__ or "") in user
        assert op.doc.strip() in user and "None" not in user


RULES = {  # what a rule of the contract becomes, in words
    ("mla_decode", "lse", "yes"): "largest absolute error to the rounded reference at most 0.002",
    ("mla_kv_append", "cache", "e4m3"): "at most 0.50% of the 8-bit codes may differ from the rounded reference",
    ("oproj_allreduce_residual", "variant", "delta"): "at most 0.0005, 0.002 after more than one step",
    ("kda_core", "q", "4"): "the worst entry of the first dimension",
    ("moe_router", "class", "exact"): "by the op's own rules alone",
    ("oproj_partial", "", ""): "|got - want| <= ulp(max(|want|, rms of the row)) + K 2^-24 sum_k |x_k w_k|",
    ("kda_core", "q", "1"): "q, k   = z_q rsqrt(sum z_q^2 + eps_qk) scale",
    ("mla_decode", "q", "8"): "Read it as `block_table.shape[1]`, a 64-bit value",
}


@pytest.mark.parametrize("key", list(RULES))
def test_rules_and_formulas_are_in_the_prompt_in_words(key: tuple[str, str, str], tmp_path: Path) -> None:
    name, axis, value = key
    assert RULES[key] in prompted(name, tmp_path, **({axis: value} if axis else {}))


def test_the_prompt_of_an_op_that_is_all_static_has_no_more_than_its_own_page(tmp_path: Path) -> None:
    user = prompted("moe_shared", tmp_path)
    assert "More on this op" not in user and user.count("## Notes on this op") == 1


PROJECTIONS = ("kda_in_proj", "mla_in_proj", "moe_latent_down", "oproj_partial")


def families(name: str, count: int) -> list[Candidate]:
    return list(SearchProposer().propose(request(Path("unused"), name, count=count, seed=0)))


@pytest.fixture(scope="module")
def builder() -> Builder:
    return shared()


# the widest of each kind, for many tokens; the others, and few tokens, are built under make deep
QUICK = (("kda_in_proj", 0, (64,)), ("moe_latent_down", 2, (64,)))
BUILT = [
    *(pytest.param(*row, id=f"{kind}-{row[0]}-64") for row, kind in zip(QUICK, ("mma", "fma"), strict=True)),
    *(
        pytest.param(name, known, (3, 64), id=f"{kind}-{name}", marks=pytest.mark.deep)
        for known, kind in ((0, "mma"), (2, "fma"))
        for name in PROJECTIONS
    ),
]


@pytest.mark.parametrize("name", PROJECTIONS)
def test_search_has_two_dozen_candidates_of_both_kinds_for_a_projection(name: str) -> None:
    found = families(name, 24)
    assert len({c.id for c in found}) == 24 and {c.op for c in found} == {name}
    assert {"class Skinny" in c.source for c in found} == {True, False}
    n, k = (f'"{t}"' for t in REGISTRY.get(name).tensors[1].shape)
    assert all(f"OUTPUTS, INPUTS = {n}, {k}" in c.source and not screen(c.source) for c in found)


@pytest.mark.parametrize(("name", "known", "bins"), BUILT)
def test_the_known_projections_build_at_all_dims_without_a_spill(
    name: str, known: int, bins: tuple[int, ...], builder: Builder, tmp_path: Path
) -> None:
    op, candidate = REGISTRY.get(name), families(name, 3)[known]
    problems = [op.problem(d, t, "sm_90a") for d in op.dims for t in bins]
    problems.append(op.problem("nano", 1, "sm_103a"))
    with CompileGate(op, tmp_path, builder) as gate:
        report = gate.run(candidate, problems)
        assert report.result.passed, report.result.message
        for artefact in report.artefacts:
            record = artefact.record
            assert {kernel.stack_bytes for kernel in record.kernels} == {0}
            assert record.ptx["global_loads_16b"] >= 2, "weights and rows move 16 bytes at a time"
            read = [a.tensor for launch in record.launches for a in launch.args if a.tensor]
            assert set(read) >= {t.name for t in op.tensors}
        small = op.problem("nano", 8, "sm_90a")
        plain = gate.run(candidate, [small]).artefacts[0].record
        for defect in DEFECTS:  # the model gate needs mutants that differ
            broken = gate.run(candidate, [small], defect)
            assert broken.result.passed, broken.result.message
            assert same_code(plain, broken.artefacts[0].record) != ""


def test_a_projection_with_few_rows_spreads_k_over_blocks_and_adds_the_slices(builder: Builder, tmp_path: Path) -> None:
    op = REGISTRY.get("moe_latent_down")
    with CompileGate(op, tmp_path, builder) as gate:
        report = gate.run(families(op.name, 1)[0], [op.problem(d, 8, "sm_90a") for d in ("k3-tp16", "vllm-tp1")])
    few, many = (a.record for a in report.artefacts)
    assert few.workspaces == (("f32", (7, 8, 224)),) and [x.grid for x in few.launches] == [(14, 7, 1), (14, 1, 1)]
    assert [[a.tensor for a in x.args] for x in few.launches] == [
        ["m", "w_latent", "workspace0"],
        ["workspace0", "lat"],
    ]
    assert many.workspaces == () and [x.grid for x in many.launches] == [(224, 1, 1)]


DRAWN = [(f"projection_{kind}.py.tmpl", seed) for seed in (0, 1, 2) for kind in ("mma", "fma")]


@pytest.mark.parametrize(
    ("template", "seed"), [DRAWN[0], *(pytest.param(*row, marks=pytest.mark.deep) for row in DRAWN[1:])]
)
def test_sampled_projections_build(template: str, seed: int, builder: Builder, tmp_path: Path) -> None:
    rng = random.Random(f"{template}{seed}")
    name = rng.choice(PROJECTIONS)
    drawn = (FAMILIES[name].sample(rng) for _ in range(100))
    variant = next(v for v in drawn if v.template == template)
    op = REGISTRY.get(name)
    problems = [op.problem(d, t, "sm_90a") for d in ("k3-tp8", "nano") for t in (1, 16)]
    with CompileGate(op, tmp_path, builder) as gate:
        report = gate.run(Candidate(name, render(variant), Origin("test")), problems)
    assert report.result.passed, f"{variant}: {report.result.message}"


def test_a_change_of_one_choice_leaves_the_dims_of_an_op_alone() -> None:
    found = families("kda_in_proj", 8)
    history = tuple((c, Verdict(c.id, ())) for c in found)
    timed = PerfPoint("p", 1, "graph", "t", 1.0, {"stock": 1.0}, "stock", 0.5, 0.5, 0.5, 0.5, 1.0, 3, "win")
    points = {found[0].id: (timed,)}
    asked = request(Path("unused"), "kda_in_proj", history=history, points=points, count=12, seed=0)
    values = [c.origin.detail["values"] for c in SearchProposer().propose(asked)]
    assert {(v["outputs"], v["inputs"]) for v in values} == {("width", "hidden")}
    best = found[0].origin.detail["values"]
    assert sum(set(v) == set(best) and sum(v[k] != best[k] for k in v) == 1 for v in values) >= 4


def test_widths_of_an_op_s_own_in_one_process_are_served_and_those_of_another_name_once() -> None:
    assert REGISTRY.get("moe_tail").served == ("k3-tp8", "k3-tp16", "vllm-tp1")
    assert REGISTRY.get("kda_core").served == ("k3-tp8", "k3-tp16")  # vllm-tp1 there is k3-tp8, proven once
