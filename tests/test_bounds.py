"""Variants with a stage left out: they differ from the kernel where the table says, and pages say what was measured."""

import ast
import difflib
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from bounding import host, page
from bounding.build import built, complaints, grouped
from bounding.compiled import COMPILED, stale
from bounding.record import Point, taken
from bounding.record import complaints as wrong_with
from bounding.table import TABLE, Row, points, source
from bounding.variants import BASE, EMPTY, Edit, Variant, hollow, left_out

from kgen.contract import Op
from kgen.gates import timing
from kgen.gates.parsing import parse
from kgen.gates.runner.job import stock_spec
from kgen.ops import REGISTRY
from kgen.records import to_json
from kgen.store.paths import cache_path

ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda r: f"{r.op}-{r.candidate}")
GPU = "NVIDIA H200"
MANGLED = "kernel_cutlass_kernel_candidateDecode_object_at__tensorptrbf16"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


def changed(old: str, new: str) -> tuple[set[str], set[str]]:
    """Lines that went and lines that came, without their margins."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    went, came = ({x[1:].strip() for x in lines if x.startswith(mark)} - {""} for mark in "-+")
    return went, came


@ROWS
def test_a_variant_differs_only_where_its_table_says(row: Row) -> None:
    text = source(row)
    for variant in (v for v in row.variants if v.name != EMPTY):
        went, came = changed(text, left_out(text, variant))
        whole = text.splitlines()
        told = {line.strip() for e in variant.edits for line in e.old.splitlines()}
        makes = {line.strip() for e in variant.edits for line in e.new.splitlines()}
        inside = [line.strip() for line in whole if any(e.old in line for e in variant.edits if "\n" not in e.old)]
        assert went, f"{variant.name} leaves nothing out"
        assert all(w in told or w in inside or any(part in w for part in told if part) for w in went)
        assert all(c in makes or any(part in c for part in makes if part) or c in whole for c in came)
        parse(left_out(text, variant))


def methods(text: str) -> dict[str, ast.FunctionDef]:
    """By class and name."""
    classes = [n for n in parse(text).body if isinstance(n, ast.ClassDef)]
    return {f"{c.name}.{f.name}": f for c in classes for f in c.body if isinstance(f, ast.FunctionDef)}


@ROWS
def test_an_empty_variant_launches_the_same_and_keeps_every_body(row: Row) -> None:
    text = source(row)
    before, after = methods(text), methods(hollow(text))
    kernels = [name for name, f in before.items() if any(ast.unparse(d) == "cute.kernel" for d in f.decorator_list)]
    assert text.count("@cute.kernel") == hollow(text).count("@cute.kernel") == len(kernels) > 0
    for name in kernels:
        owner, method = name.split(".")
        shell, whole = after[name], after[f"{owner}.whole_{method}"]
        assert ast.dump(shell.args) == ast.dump(before[name].args)
        assert [ast.dump(s) for s in whole.body] == [ast.dump(s) for s in before[name].body]
        assert [type(s) for s in shell.body] == [ast.Expr, ast.Expr, ast.If]
    rest = [name for name in before if name not in kernels]
    assert [ast.dump(before[name]) for name in rest] == [ast.dump(after[name]) for name in rest]


def test_an_edit_of_a_text_that_is_not_there_as_often_is_refused() -> None:
    twice = Variant("v", "w", (Edit("x = 1\n", ""),))
    with pytest.raises(ValueError, match="stands there 2 times, not 1"):
        left_out("x = 1\nx = 1\n", twice)
    assert left_out("x = 1\ny = 2\n", twice) == "y = 2\n"


def test_what_is_furthest_from_its_aim_is_measured_at_many_tokens_first() -> None:
    assert all(row.tokens[0] == max(row.tokens) for row in TABLE)
    assert {(r.op, r.candidate) for r in TABLE} and len({(r.op, r.candidate) for r in TABLE}) == len(TABLE)
    for row in TABLE:
        assert [p.tokens for p in points(row)] == list(row.tokens)
        assert len({v.name for v in row.variants} | {BASE}) == len(row.variants) + 1


@ROWS
def test_every_variant_was_compiled_as_it_is_and_keeps_its_loads(row: Row) -> None:
    record = json.loads(COMPILED.read_text(encoding="utf-8"))
    assert stale(record, [row]) == []
    for tokens in row.tokens:
        made = record["points"][f"{row.op} {row.candidate} t{tokens}"]
        assert len({facts["object_sha256"] for facts in made.values()}) == len(made), "a variant leaves nothing out"


def test_a_record_of_another_source_or_of_other_loads_is_stale() -> None:
    row, record = TABLE[0], json.loads(COMPILED.read_text(encoding="utf-8"))
    made = record["points"][f"{row.op} {row.candidate} t{row.tokens[0]}"]
    made["no norm"]["source_sha256"] = "0" * 64
    made["no advance"]["global_loads_16b"] -= 1
    del made[EMPTY]
    said = [line.partition(": ")[0].removeprefix(f"{row.op} {row.candidate} t64 ") for line in stale(record, [row])]
    assert said == ["no advance", "no norm", EMPTY]


@pytest.mark.deep
@ROWS
def test_every_variant_compiles_and_keeps_its_loads(row: Row) -> None:
    for group in grouped(built([row], cache_path())):
        assert complaints(group) == []
        assert (
            len({m.artefact.record.launches[0].grid for m in group if not m.variant.alone or m.variant.name == EMPTY})
            == 1
        )


# -- the host


def result(us: dict[str, list[float]], failed: dict[str, str] | None = None) -> dict[str, Any]:
    """What a host writes of one point of a made-up kernel."""
    left = {
        BASE: "nothing",
        "no a": "stage a; the rest stays",
        "no b": "stage b",
        "a": "all but stage a",
        EMPTY: "everything",
    }
    variants = [
        {"name": n, "left": w, "loads": "same", "alone": n in ("a", EMPTY), "object_sha256": f"{i:064}"}
        for i, (n, w) in enumerate(left.items())
    ]
    problem = REGISTRY.get("kda_core").problem("k3-tp8", 64, "sm_90a")
    key = "kda_core 0123456789ab t64"
    about = {"op": "kda_core", "candidate": "0123456789ab", "problem": problem.key, "tokens": 64}
    timed = {"key": key, **about, "variants": variants, "us": us, "sets": 24, "calls": 24, "warm": "", "seconds": 1.0}
    machine = {"gpu": GPU, "driver": "1", "cuda": "2", "torch": "3", "python": "4", "sms": 132}
    return {
        "schema": "kgen.bounds/1",
        "pack": "d",
        "environment": machine,
        "points": {key: timed},
        "failed": {f"{key} {name}": why for name, why in (failed or {}).items()},
        "counters": {key: {"kernels": {MANGLED: {DRAM: 61.25}}, "skipped": ""}},
    }


TIMES = {BASE: [40.0, 42.0, 41.0], "no a": [30.0, 31.0, 29.0], "no b": [39.0], "a": [20.5], EMPTY: [2.0]}


def recorded(tmp_path: Path, given: dict[str, Any]) -> Path:
    path = tmp_path / "bounds.json"
    path.write_text(taken(given))
    return path


def test_a_page_names_the_stage_that_saves_most_and_what_is_left_alone(tmp_path: Path) -> None:
    text = page.region("kda_core", path=recorded(tmp_path, result(TIMES)))
    flat = " ".join(text.split())
    assert "At 64 tokens it takes 41.00 µs, its launches alone 2.00;" in flat
    assert "most is saved by leaving out stage a: 11.00 µs, 27 %." in flat  # 41 - 30, of 41
    assert "“a” takes 20.50 µs, 50 %." in flat
    assert "| no b | stage b | 39.00 |" in text and GPU in text
    assert "Decode, 64 tokens" in text and "| 61.2 |" in text
    figures = set(re.findall(r"\d+\.\d+", text))
    assert figures == {"41.00", "30.00", "39.00", "20.50", "2.00", "11.00", "61.2"}, "a figure that was not measured"


def test_a_page_says_that_no_single_stage_bounds_a_kernel_where_none_saves_much(tmp_path: Path) -> None:
    little = {**TIMES, "no a": [39.5]}  # 1.5 of 41: below 5 %
    flat = " ".join(page.region("kda_core", path=recorded(tmp_path, result(little))).split())
    assert "leaving out any single stage saves less than 5 % of that" in flat and "most is saved" not in flat


def test_a_page_says_which_variant_was_not_timed(tmp_path: Path) -> None:
    lost = {name: us for name, us in TIMES.items() if name != "no a"}
    text = page.region("kda_core", path=recorded(tmp_path, result(lost, {"no a": "killed after 25 s"})))
    assert "| no a | stage a; the rest stays | – |" in text
    assert "“no a” was not timed: killed after 25 s." in " ".join(text.split())


def test_a_page_says_whether_the_measured_kernel_serves(tmp_path: Path) -> None:
    path = recorded(tmp_path, result(TIMES))
    assert "`0123456789ab`, which serves," in page.region("kda_core", {"0123456789ab"}, path)
    assert "`0123456789ab`, which does not serve now," in page.region("kda_core", {"f" * 12}, path)


@pytest.mark.parametrize("op", ["kda_core", "mla_q"])
def test_a_page_without_a_record_says_that_nothing_was_measured(tmp_path: Path, op: str) -> None:
    text = page.region(op, path=tmp_path / "absent.json")
    assert " ".join(text.split()) == page.NOT_MEASURED
    other = page.region("mla_q", path=recorded(tmp_path, result(TIMES)))
    assert " ".join(other.split()) == page.NOT_MEASURED


def test_times_of_single_stages_are_ordered_by_what_they_save(tmp_path: Path) -> None:
    (row,) = json.loads(recorded(tmp_path, result(TIMES)).read_text())["points"]
    assert Point.of(row).saved == {"no a": 11.0, "no b": 2.0}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"tokens": 8}, "its problem is"),
        ({"variants": []}, "the first has to be"),
        ({"counters": {"k": {"made_up": 1.0}}}, "no counter is named made_up"),
    ],
)
def test_a_record_that_contradicts_itself_is_named(tmp_path: Path, damage: dict[str, Any], said: str) -> None:
    record = json.loads(recorded(tmp_path, result(TIMES)).read_text())
    assert wrong_with(record) == []
    record["points"][0].update(damage)
    if damage == {"variants": []}:
        record["points"][0]["variants"] = json.loads(taken(result(TIMES)))["points"][0]["variants"][1:]
    assert any(said in line for line in wrong_with(record))


def test_times_below_zero_and_equal_objects_are_named(tmp_path: Path) -> None:
    record = json.loads(recorded(tmp_path, result({**TIMES, "no b": [-1.0]})).read_text())
    record["points"][0]["variants"][1]["object_sha256"] = record["points"][0]["variants"][2]["object_sha256"]
    assert len(wrong_with(record)) == 2


def test_the_committed_record_is_sound() -> None:
    if page.RECORD.exists():
        assert wrong_with(json.loads(page.RECORD.read_text(encoding="utf-8"))) == []


WORKER = """
    import json, sys, time
    job = json.loads(sys.argv[-1])
    say = lambda **record: print(json.dumps(record), flush=True)
    say(environment={"gpu": "G"})
    for key in job["points"]:
        say(at=[key, ""])
        if "b hangs" not in job["skip"] and key == "b":
            say(at=["b", "hangs"])
            if HOW == "fault":
                say(failed="b hangs", error="RuntimeError: CUDA error")
                sys.exit()
            sys.exit("died")
        say(key=key, us={"as it is": [1.0]})
    say(done=True)
"""


@pytest.mark.parametrize(("how", "said"), [("fault", "CUDA error"), ("death", "status 1: died")])
def test_a_variant_that_faults_is_left_out_and_the_rest_is_measured(tmp_path: Path, how: str, said: str) -> None:
    script = tmp_path / "worker.py"
    script.write_text(f"HOW = {how!r}\n" + textwrap.dedent(WORKER))
    points_ = [{"key": k, "op": "o", "candidate": "c", "problem": "p", "tokens": 1, "variants": []} for k in "abc"]
    found: dict[str, Any] = {"environment": {}, "points": {}, "failed": {}}
    end = host.time.monotonic() + 120
    for record in host.gather([sys.executable, str(script)], points_, found, end):
        host.taken(found, points_, record)
    assert list(found["points"]) == ["a", "b", "c"] and list(found["failed"]) == ["b hangs"]
    assert said in found["failed"]["b hangs"] and found["environment"] == {"gpu": "G"}
    assert list(host.gather([sys.executable, str(script)], points_, found, end)) == []  # taken up where it stopped


def test_all_variants_of_a_point_are_timed_over_the_same_rotation(tmp_path: Path) -> None:
    op: Op = REGISTRY.get("moe_tail")
    problem = op.problem("nano", 1, "sm_90a")
    names = (BASE, "no a", "lost")
    variants = [{"name": n, "spec": to_json(stock_spec(problem))} for n in names]  # stock stands in: no GPU here
    point = {"key": "k", "variants": variants}
    records = list(host.measure(tmp_path, point, ["k lost"], timing.Clock("cpu")))
    assert [r["at"] for r in records[:-1]] == [["k", ""], ["k", BASE], ["k", "no a"], ["k", ""]]
    last = records[-1]
    assert {n: len(us) for n, us in last["us"].items()} == {BASE: host.REPETITIONS, "no a": host.REPETITIONS}
    with pytest.raises(ValueError, match="the kernel itself"):
        list(host.measure(tmp_path, point, [f"k {BASE}"], timing.Clock("cpu")))
    assert last["calls"] % last["sets"] == 0 and all(us > 0 for us in last["us"][BASE])


def test_another_files_result_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "bounds.json"
    assert host.resumed(path, "d") == {**result({}), "environment": {}, "points": {}, "counters": {}}
    path.write_text(json.dumps(result(TIMES)))
    assert host.resumed(path, "d") == result(TIMES) and host.resumed(path, "e") is None
    path.write_text("{")
    assert host.resumed(path, "d") is None
