"""Technique pages: chosen by what an op is and by what was found out, within a budget, the same each time."""

from pathlib import Path

import pytest
from support.requests import attempt, failing, passing, request

from kgen.diagnosis.compile_errors import CLASSES as COMPILER
from kgen.ops import REGISTRY
from kgen.proposers.base import Ask
from kgen.proposers.render import Prompt, packaged
from kgen.proposers.techniques import (
    ANSWERS,
    BUDGET,
    CLASSES,
    FOLDER,
    LAUNCHES,
    MATRIX,
    NO_PDL,
    answering,
    chosen,
    text,
    title,
)
from kgen.records import GateResult

PAGES = packaged().pages


def test_an_op_with_mxfp4_weights_gets_the_page_on_decoding_them_first() -> None:
    assert chosen(REGISTRY.ops["moe_experts"], PAGES)[0] == f"{FOLDER}mxfp4.md"
    assert f"{FOLDER}mxfp4.md" not in chosen(REGISTRY.ops["attn_res"], PAGES)[:1]


@pytest.mark.parametrize("op", ["moe_shared", "moe_router", "mla_in_proj", "oproj_partial", "lm_head_argmax"])
def test_an_op_that_multiplies_by_a_bf16_matrix_gets_the_page_on_that_first(op: str) -> None:
    assert chosen(REGISTRY.ops[op], PAGES)[0] == f"{FOLDER}mma-registers.md"


@pytest.mark.parametrize("op", sorted(REGISTRY.ops))
def test_the_pages_of_an_op_are_within_the_budget_and_not_all_of_them(op: str) -> None:
    picked = chosen(REGISTRY.ops[op], PAGES)
    assert sum(len(PAGES[name]) for name in picked) <= BUDGET
    assert len(picked) < sum(name.startswith(FOLDER) for name in PAGES)


def test_the_system_prompt_is_the_guide_then_the_pages_of_the_op(tmp_path: Path) -> None:
    asked = request(tmp_path, "moe_experts")
    system = packaged().prompt(asked).system
    page = text(PAGES[f"{FOLDER}mxfp4.md"]).strip()
    assert system.index(PAGES["guide.md"].strip()) < system.index(page)
    assert "\ntags: " not in system and "\nanswers: " not in system


def built(launches: int = 1, pdl: bool = False, dims: str = "k3-tp8", **launch: object) -> GateResult:
    """A build without faults: two whole waves of 256 threads, wide loads with a hint; `launch` changes that."""
    given = {"kernel": "k", "grid": [264, 1, 1], "block": [256, 1, 1], "registers": 64, "stack_bytes": 0, "smem": 0}
    facts = {
        "launches": [{**given, "attributes": {"pdl": 1} if pdl else {}, **launch}] * launches,
        "ptx": {"global_loads": 4, "global_loads_16b": 4, "no_allocate": 4},
    }
    return passing(problems={f"moe_shared/{dims}/t1/sm_90a": facts})


def improved(tmp_path: Path, compiled: GateResult, archs: tuple[str, ...] = ("sm_90a",), **more: object) -> Prompt:
    return packaged().prompt(request(tmp_path, history=(attempt("x = 1\n", compiled),), archs=archs, **more))


def answers(prompt: Prompt) -> str:
    """What a prompt says after "What answers these findings", before the candidate."""
    return prompt.user.partition("## What answers these findings")[2].partition("The candidate:")[0]


BY_BUILD = {
    "few blocks": ({"grid": [16, 1, 1]}, "split-k-cluster"),
    "an empty last wave": ({"grid": [4 * 132 + 20, 1, 1]}, "persistent"),
    "spills": ({"stack_bytes": 64}, "cp-async"),
    "low occupancy": ({"block": [32, 1, 1], "grid": [132, 1, 1], "registers": 32}, "cp-async"),
    "a second launch without PDL": ({"launches": 2}, "pdl"),
}


@pytest.mark.parametrize("case", BY_BUILD)
def test_what_a_build_shows_brings_the_page_that_answers_it(case: str, tmp_path: Path) -> None:
    launch, page = BY_BUILD[case]
    said = answers(improved(tmp_path, built(**launch)))  # type: ignore[arg-type]
    assert title(PAGES[f"{FOLDER}{page}.md"]) in said


def test_a_build_without_fault_brings_no_page(tmp_path: Path) -> None:
    assert answers(improved(tmp_path, built())) == "" == answers(packaged().prompt(request(tmp_path)))


def test_small_dims_bring_no_advice_on_the_size_of_a_grid_where_others_were_built(tmp_path: Path) -> None:
    small, served = built(dims="nano", grid=[4, 1, 1]), built()
    both = passing(problems={**small.evidence["problems"], **served.evidence["problems"]})
    prompt = improved(tmp_path, both)
    assert answers(prompt) == "" and "only 4 blocks" not in prompt.user
    assert "only 4 blocks" in improved(tmp_path, small).user


def test_a_race_brings_the_page_on_waiting(tmp_path: Path) -> None:
    failed = failing("m", "numeric.race", "unit-numeric", failures=["numeric.race: line 3: `ld` by thread (1, 0, 0)"])
    prompt = packaged().prompt(request(tmp_path, history=(attempt("x = 1\n", passing(), failed),)))
    assert prompt.template == "repair.md" and title(PAGES[f"{FOLDER}pdl.md"]) in answers(prompt)


def test_a_wait_without_a_cooperative_launch_brings_the_page_on_waiting_blocks(tmp_path: Path) -> None:
    problems = built().evidence["problems"]
    waiting = passing(problems={key: {**facts, "waits": ["k"]} for key, facts in problems.items()})
    page = title(PAGES[f"{FOLDER}lamport-mailbox.md"])
    assert page in answers(improved(tmp_path, waiting)) and page not in answers(improved(tmp_path, built()))


def test_pages_by_diagnosis_leave_the_system_prompt_as_it_was(tmp_path: Path) -> None:
    first, later = (
        packaged().prompt(request(tmp_path)),
        improved(tmp_path, built(grid=[16, 1, 1]), ("sm_90a", "sm_103a")),
    )
    assert later.system == first.system and answers(later)


def test_many_tokens_bring_wgmma_where_there_is_wgmma(tmp_path: Path) -> None:
    name = title(PAGES[f"{FOLDER}wgmma.md"])
    for tokens, archs, wanted in (
        ((33, 64), ("sm_90a",), True),
        ((1, 2, 4, 8), ("sm_90a",), False),
        ((33, 64), ("sm_103a",), False),
    ):
        ask = Ask(1, "optimise", (attempt("x = 1\n")[0].id,), tokens)
        assert (name in answers(improved(tmp_path, built(), archs, ask=ask))) is wanted


def test_pages_by_diagnosis_are_within_their_budget_and_none_is_shown_twice() -> None:
    everything = [*CLASSES, LAUNCHES, NO_PDL, MATRIX]
    found = answering(everything, PAGES)
    assert found.pages and sum(map(len, found.pages)) <= ANSWERS
    known = [name for name in PAGES if name.startswith(FOLDER)]
    again = answering(everything, PAGES, known=known)
    assert again.pages == () and len(again.known) == sum("\nanswers: " in PAGES[n] for n in known)


def test_every_class_that_a_page_answers_exists_and_every_class_has_a_page() -> None:
    said = {w for n, p in PAGES.items() if n.startswith(FOLDER) for w in _answers(p)}
    assert said <= {*CLASSES, LAUNCHES, NO_PDL, MATRIX, *(c.name for c in COMPILER)}
    assert {*CLASSES, LAUNCHES, NO_PDL, MATRIX} <= said


def _answers(page: str) -> list[str]:
    return [w for line in page.splitlines() if line.startswith("answers: ") for w in line.split()[1:]]
