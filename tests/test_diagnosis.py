"""Every bad candidate's recorded message has its class; what is shown keeps within its tokens."""

import json
import random
from pathlib import Path

import pytest
from diagnosis.cases import CASES
from diagnosis.record import MESSAGES, said

from kgen.diagnosis.api_names import installed
from kgen.diagnosis.compile_errors import CLASSES, classify, findings
from kgen.diagnosis.findings import Diagnosis, Finding, ordered
from kgen.diagnosis.perf import findings as speed
from kgen.diagnosis.shown import of_failure, shown, tokens
from kgen.proposers.feedback import feedback
from kgen.records import GATES, Candidate, GateResult, Origin, PerfPoint, Status, Verdict

RECORDED = json.loads(MESSAGES.read_text(encoding="utf-8"))
PAGE = (Path(__file__).parents[1] / "docs" / "diagnosis.md").read_text()


def failing(gate: str, code: str, message: str, **evidence: object) -> GateResult:
    return GateResult(gate, Status.FAIL, code, message, evidence, 1.0, 2)


@pytest.mark.parametrize("name", CASES)
def test_a_message_of_the_real_compiler_has_its_class_and_a_fix(name: str) -> None:
    known = classify(RECORDED[name]["code"], RECORDED[name]["message"])
    assert known is not None and known.name == CASES[name][0] and known.fix


@pytest.mark.deep
def test_the_compiler_still_says_the_same() -> None:
    now = said(list(CASES))
    for name, (wanted, _, _) in CASES.items():
        known = classify(now[name]["code"], now[name]["message"])
        assert known is not None and known.name == wanted, now[name]


def test_errors_of_one_class_are_one_finding_with_their_lines() -> None:
    found = findings([("screen.import", f"line {n}: import of os is not allowed") for n in (3, 9)])
    assert len(found) == 1 and found[0].detail["lines"] == [3, 9] and "2 times" in found[0].text


def test_every_name_that_does_not_exist_is_said_with_the_nearest_real_ones() -> None:
    words = "AttributeError: module 'cutlass.cute' has no attribute"
    lines = [f"{words} '{n}' (candidate.py:{i}); nearest real names: a.{n}0, a.{n}1" for i, n in ((7, "x"), (9, "y"))]
    (found,) = of_failure(failing("compile", "compile.name", "\n".join(lines))).findings
    assert found.code == "unknown-attribute" and found.detail["lines"] == [7, 9]
    assert "there is no cutlass.cute.x, nearest: a.x0, a.x1; there is no cutlass.cute.y, nearest: a.y0" in found.text


def test_where_the_compiler_says_it_the_nearest_names_are_looked_up() -> None:
    if installed() is None:
        pytest.skip("no compiler here")
    said = (
        "p: candidate.py:70 in dot: f()\nAttributeError: module 'cutlass.cute.arch' has no attribute 'warp_reduce_sum'"
    )
    (found,) = of_failure(failing("compile", "compile.name", said)).findings
    assert "nearest: cutlass.cute.arch.warp_reduction_sum" in found.text and found.detail["lines"] == [70]


def test_an_unknown_error_is_quoted_as_it_came() -> None:
    (found,) = findings([("compile.other", "something new went wrong")])
    assert "unknown class: something new went wrong" in found.text and not found.fix


def test_the_page_lists_the_classes() -> None:
    assert all(f"| `{c.name}` | {c.means} | {c.fix} |" in PAGE for c in CLASSES)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_shown_fits_and_is_a_prefix_of_the_order(seed: int) -> None:
    rng = random.Random(seed)
    words = ["x" * rng.randrange(1, 900) + rng.choice(["", "é", "漢字"]) for _ in range(rng.randrange(0, 60))]
    made = ordered(Finding("k", rng.randrange(4), "c", f"{n} {w}") for n, w in enumerate(words))
    limit = rng.randrange(10, 2500)
    text = shown(made, limit)
    assert tokens(text) <= limit
    lines = [line for line in text.splitlines() if not line.startswith("(")]
    for line, finding in zip(lines, made.findings, strict=False):
        assert line.removesuffix(" ...") == finding.line[: len(line.removesuffix(" ..."))]
    assert shown(made, limit) == text


def test_nothing_found_is_nothing_said() -> None:
    assert shown(Diagnosis()) == ""


def test_common_ground_comes_before_places_and_the_interpreter_s_words_are_findings() -> None:
    where = [
        {"patterns": ["only when tokens > 8"]},
        {"problem": "p", "what": "normal", "output": "y", "step": 1, "wrong": 4, "total": 64,
         "patterns": ["every 16th hidden from 8"], "worst": [[0, 8]]},
    ]  # fmt: skip
    race = "numeric.race: p: race: two writes; k line 7: `st.shared.b32 [%r1], %r2;`, block (0, 0, 0), thread (3, 0, 0)"
    result = failing("unit-numeric", "numeric.error", "m", where=where, failures=[race, "numeric.error: p: y: off"])
    found = of_failure(result).findings
    assert [f.kind for f in found] == ["numeric", "interpreter", "numeric", "numeric"]
    assert "only when tokens > 8" in found[0].text and "barrier" in found[1].fix
    assert "every 16th hidden from 8; worst at [0, 8]" in found[2].text


def test_a_repair_page_says_findings_then_words_within_the_tokens() -> None:
    result = failing(
        "compile", RECORDED["early exit"]["code"], RECORDED["early exit"]["message"] * 40, extra="e" * 9000
    )
    values = feedback(((Candidate("op", "x = 1\n", Origin("t")), Verdict("c", (result,))),)).values["failed"]
    assert values["message"].index("[early-exit]") < values["message"].index("The gate's own words")
    assert tokens(values["message"]) + tokens(values["facts"]) <= 2000


def test_speed_says_waves_occupancy_and_the_rate_that_was_reached() -> None:
    # 264 blocks of 256 threads, 64 registers: 65536 / (64 * 256) = 4 blocks an SM, 264 / (132 * 4) = 0.5 waves
    launch = {"kernel": "k", "grid": [264, 1, 1], "block": [256, 1, 1], "registers": 64, "smem": 0, "stack_bytes": 16}
    point = PerfPoint(
        "op/d/t8/sm_90a", 8, "graph", "t", 10.0, {"stock": 12.0}, "stock", 0.83, 0.8, 0.9, 0.5, 5.0, 9, "win"
    )
    facts = {"launches": [launch], "ptx": {"global_loads": 10, "global_loads_16b": 2, "local": 3}}
    found = {f.code: f for f in speed({"op/d/t8/sm_90a": facts}, [point])}
    assert "4 resident an SM (limit: registers), 16 of 64 warps, 0.50 waves" in found["launch"].text
    assert "spills" in found["launch"].fix
    assert "22.4 MB in at least 5.00 us, 2.24 TB/s reached (50% of a plain read)" in found["point"].text
    assert "narrower than 16 bytes" in found["ptx"].fix and "no-allocate" in found["ptx"].fix


def test_gates_by_name_are_those_of_the_records() -> None:
    assert {"compile", "unit-numeric"} <= set(GATES)
