"""What a reviewer learns from a report: the verdict first, then what it rests on; nothing that could be forged."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.loops import OP, recording, source
from support.proven import DIMS, proven, results

from kgen.gates.ingest import Ingested
from kgen.loop.intake import judge, take_in
from kgen.records import Candidate, GateResult, Origin, SignedEvidence, Status
from kgen.report import MAX_BYTES, Document, as_json, markdown, read
from kgen.report.text import cell, code, fenced
from kgen.store import Run, Runs
from kgen.store.signing import sign


@pytest.fixture
def staged(tmp_path: Path) -> Document:
    return read(proven(tmp_path / "runs", tmp_path / "cache").run, OP)


@pytest.fixture
def promotable(tmp_path: Path) -> Document:
    made = proven(tmp_path / "runs", tmp_path / "cache")
    with made.run.lock():
        take_in(made.run, Ingested(made.case.evidence, made.case.raw, "own-key"))
    return read(made.run, OP)


def sections(text: str) -> list[str]:
    return [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]


def rows(text: str, section: str) -> list[list[str]]:
    """The table rows of a section, heads left out."""
    body = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines[2:]]


def tables(text: str, section: str) -> list[list[list[str]]]:
    """The rows of each table of a section."""
    body = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return [rows(f"## {section}\n{block}", section) for block in body.split("\n\n") if block.startswith("|")]


def test_the_marker_is_first_and_the_verdict_next(promotable: Document) -> None:
    lines = markdown(promotable).splitlines()
    assert lines[0] == f"<!-- kgen-report op={OP.name} run={promotable.run.id} -->"
    assert lines[2].startswith("# ") and "PROMOTABLE" in lines[2]
    assert promotable.subject is not None and promotable.subject.candidate.id[:12] in lines[2]


def test_sections_come_in_the_order_that_a_reviewer_reads(promotable: Document) -> None:
    expected = ["Gates", "Numbers", "In the model", "Speed", "Built", "Candidates"]
    expected += ["Environment", "Provenance", "Reproduce"]
    assert sections(markdown(promotable)) == expected


def test_the_command_to_repeat_has_no_places_of_the_machine_that_ran_it(promotable: Document) -> None:
    given = "kgen propose --op moe_shared --runs ~/runs --seed 3 --set '/tmp/a set' -q"
    text = markdown(replace(promotable, run=replace(promotable.run, command=given)))
    assert "kgen propose --op moe_shared --seed 3 -q\n" in text and "~/runs" not in text and "a set" not in text


def test_the_gate_table_has_all_four_gates_with_status_and_code(promotable: Document) -> None:
    table = rows(markdown(promotable), "Gates")
    assert [r[0] for r in table] == ["compile", "unit-numeric", "full-model-eval", "perf-sweep"]
    assert all("pass" in r[1] for r in table)
    assert "`compile.pass`" in table[0]


def test_the_numeric_table_shows_the_worst_family_beside_both_references(promotable: Document) -> None:
    (row,) = rows(markdown(promotable), "Numbers")
    assert row[:2] == [DIMS, "y"]
    assert row[2].startswith("outlier")
    assert row[3:] == ["2.02e-03", "1.10e-03", "1.20e-03", "4.00e-03", "1.30e-03", "1.40e-03", "4.00e-03", "93 %"]


def test_the_model_table_shows_ratios_agreement_and_mutants(promotable: Document) -> None:
    text = markdown(promotable)
    (row,), answers, (path,) = tables(text, "In the model")
    assert row[0] == "slice-tp8" and "1.010 [0.980, 1.040]" in row
    assert "3 lost, 4 won of 256" in row
    marks = ["832", "98.50%", "98.38%", "0.001 [-0.004, 0.006]"]
    assert answers == [["tasks nano t64 graph", task, *marks] for task in ("gated", "recall")]
    assert path == ["free nano t16 s4096 graph", "52 in 4000", "50 in 4100", "1.040 [0.800, 1.300]"]
    assert "Mutant `moe_shared tile_scale` (slice-tp8)" in text and "refused" in text


def test_candidates_that_were_judged_together_are_named(promotable: Document, tmp_path: Path) -> None:
    assert "other candidates in place" not in markdown(promotable)
    made = proven(tmp_path / "other", tmp_path / "cache2")
    case = made.case.evidence
    facts = {**case.evidence.facts, "together": {"attn_res": "ab12" * 16, "kda_core": "cd34" * 16}}
    signed = sign(replace(case.evidence, facts=facts), made.run.key())
    with made.run.lock():
        take_in(made.run, Ingested(signed, made.case.raw, "own-key"))
    text = markdown(read(made.run, OP))
    said = (
        "Judged with other candidates in place as well, all at once: attn_res `ab12ab12ab12`, kda_core `cd34cd34cd34`."
    )
    assert said in text.split("## In the model")[1].split("## ")[0]


def test_the_perf_table_has_interval_roofline_and_label_for_each_point(promotable: Document) -> None:
    table = rows(markdown(promotable).split("<details><summary>cold")[0], "Speed")
    assert [(r[0], r[-1]) for r in table] == [
        (f"{DIMS}/t1/sm_90a", "win"),
        (f"{DIMS}/t2/sm_90a", "win"),
        (f"{DIMS}/t8/sm_90a", "tie"),
        (f"{DIMS}/t16/sm_90a", "left"),
        (f"{DIMS}/t16/sm_90a", "left"),  # and at the padded count of 12
    ]
    first = table[0]
    assert first[2] == "9.00" and first[3] == "stock 10.00"
    assert first[5] == "0.880–0.900" and first[6] == "70 %"


def test_the_headline_tells_wins_ties_the_gpu_and_the_next_command(promotable: Document) -> None:
    head = markdown(promotable).split("## Gates")[0]
    assert "2 points win, 1 tie" in head and "NVIDIA H200" in head
    assert f"`kgen promote {promotable.run.id}`" in head


def test_self_reported_evidence_is_called_so(tmp_path: Path) -> None:
    made = proven(tmp_path / "runs", tmp_path / "cache")
    unsigned = SignedEvidence(made.case.evidence.evidence, made.run.id, "")
    with made.run.lock():
        take_in(made.run, Ingested(unsigned, made.case.raw, "self-reported"))
    text = markdown(read(made.run, OP))
    assert "self-reported" in text.split("## Gates")[0] and "--trust" in text


def test_a_staged_run_says_what_is_not_proven_and_how_to_go_on(staged: Document) -> None:
    text = markdown(staged)
    head = text.split("## Gates")[0]
    assert "STAGED" in head and "Not proven yet: unit-numeric, full-model-eval, perf-sweep" in head
    assert f"kgen kit {staged.run.id} -o kit.pyz" in head
    assert "Numbers" not in sections(text) and "Speed" not in sections(text) and "Environment" not in sections(text)
    assert "Built" in sections(text)


def test_numbers_from_the_interpreter_are_called_so_and_stay_unproven(tmp_path: Path) -> None:
    made = proven(tmp_path / "runs", tmp_path / "cache", Status.SKIP)
    (folder,) = made.run.folders()
    folder.write_result(GateResult("unit-numeric", Status.PASS, "numeric.ptx_pass", "right", {"device": "ptx"}))
    judge(folder)
    text = markdown(read(made.run, OP))
    head = text.split("## Gates")[0]
    assert "right in the PTX interpreter" in head and "Not proven yet: unit-numeric, full-model-eval" in head
    assert "| unit-numeric | ✅ pass (interpreted) | `numeric.ptx_pass` |" in text


def test_a_refused_candidate_shows_gate_code_and_the_whole_message(tmp_path: Path) -> None:
    made = proven(tmp_path / "runs", tmp_path / "cache")
    (folder,) = made.run.folders()
    message = "relL2 too large\nsecond line of it"
    folder.write_result(GateResult("unit-numeric", Status.FAIL, "numeric.error", message))
    judge(folder)
    text = markdown(read(made.run, OP))
    assert "FAILED" in text.splitlines()[2]
    assert "`numeric.error`" in text
    assert "second line of it" in text.split("## Logs")[1]


def test_an_unfinished_run_points_to_resume(tmp_path: Path) -> None:
    run = Runs(tmp_path / "runs").find(recording(tmp_path / "runs", [source("a")]).name)
    document = read(run, OP)
    assert document.next_command == f"kgen resume {run.id}"
    assert "UNFINISHED" in markdown(document)


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    run = Runs(tmp_path / "runs").find(recording(tmp_path / "runs", []).name)
    assert "nothing was proposed" in markdown(read(run, OP))
    assert as_json(read(run, OP))["candidates"] == []


def many(tmp_path: Path, count: int, message: str) -> Run:
    made = proven(tmp_path / "runs", tmp_path / "cache")
    with made.run.lock():
        for number in range(count):
            folder = made.run.add(Candidate(OP.name, source(str(number)), Origin("openai", {"model": "m" * 50})))
            folder.write_result(GateResult("compile", Status.FAIL, "compile.syntax", message))
            judge(folder)
    return made.run


@pytest.mark.parametrize("count", [40, 400])
def test_a_report_never_exceeds_a_comment_and_points_to_the_rest(tmp_path: Path, count: int) -> None:
    document = read(many(tmp_path, count, "é" * 5000), OP)
    text = markdown(document)
    assert len(text.encode()) <= MAX_BYTES
    assert f"kgen report {document.run.id} --format json" in text
    assert text.splitlines()[0].startswith("<!-- kgen-report")
    assert "STAGED" in text
    assert text.count("<details>") == text.count("</details>")
    assert len(as_json(document)["candidates"]) == count + 1  # where the pointer leads, all is there


@pytest.mark.parametrize("limit", [400, 1500, 5000])
def test_even_a_tiny_limit_keeps_marker_and_verdict(tmp_path: Path, limit: int) -> None:
    text = markdown(read(many(tmp_path, 5, "x" * 900), OP), limit)
    assert len(text.encode()) <= limit
    assert text.startswith("<!-- kgen-report") and "Left out" in text
    assert text.count("<details>") == text.count("</details>")


ATTACK = "| x | y |\n</details><script>alert(1)</script> ```\n# forged @someone #1 [a](http://b) <!-- kgen-report -->"


def test_text_of_candidates_and_compilers_stays_data(tmp_path: Path) -> None:
    run = many(tmp_path, 1, ATTACK)
    with run.lock():
        folder = run.add(Candidate(OP.name, "#\n", Origin("openai", {"model": ATTACK})))
        folder.write_result(GateResult("compile", Status.FAIL, ATTACK, ATTACK))
        judge(folder)
    text = markdown(read(run, OP))
    outside = "".join(part for i, part in enumerate(text.split("````")) if i % 2 == 0)
    outside = re.sub(r"`[^`\n]*`", "code", outside)
    assert "<script>" not in outside and "forged @" not in outside and "](http" not in outside
    assert sum(line.startswith("# ") for line in outside.splitlines()) == 1
    assert outside.count("<!-- kgen-report") == 1
    assert all(len(row) == 7 for row in rows(outside, "Candidates"))


def test_cells_fences_and_code_hold_anything() -> None:
    assert "\n" not in cell("a\nb|c") and "|" not in cell("a|b")
    assert cell("snake_case stays") == "snake_case stays"
    assert len(cell("x" * 999)) <= 220
    assert code("a`b") == "`a'b`"
    body = fenced("````\n```")
    assert body.splitlines()[0].startswith("`````") and body.splitlines()[-1] == "`````"


def test_json_is_one_named_document_that_survives_a_round_trip(promotable: Document) -> None:
    document = as_json(promotable)
    assert document["schema"] == "kgen.report/1"
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    (entry,) = document["candidates"]
    assert entry["state"] == "promotable" and document["outcome"] == "promotable"
    assert len(entry["points"]) == 10 and set(entry["envelope"].values()) == {"win", "tie"}
    assert entry["trust"] == "own-key" and entry["environment"]["gpu"] == "NVIDIA H200"


def test_the_subject_is_the_candidate_that_got_furthest(tmp_path: Path) -> None:
    document = read(many(tmp_path, 3, "no"), OP)
    assert document.subject is not None and document.subject.state == "staged"
    assert document.outcome == "staged" and document.counted("failed") == 3


def test_results_that_are_skips_are_never_shown_as_passes(staged: Document) -> None:
    table = rows(markdown(staged), "Gates")
    assert [("skip" in r[1], "pass" in r[1]) for r in table[1:]] == [(True, False)] * 3
    assert replace(results(Status.SKIP)[0]).passed is False
