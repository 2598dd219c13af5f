"""A trial on made-up records: which processes it wants, and how what they left becomes one verdict, in which order.

The processes themselves, and real decode steps, are test_modeleval_gate.py's part.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.modeleval import Stand, stand
from support.trial import (
    BRIEF,
    BUILDS,
    DEFECTS,
    DRAWN,
    KERNEL,
    MUTANTS,
    PLAIN,
    TRAINED,
    Change,
    names,
    run,
    tensors,
    trial,
)

from kgen.gates.modeleval import limits
from kgen.gates.modeleval.exercise import EAGER, GRAPH, Way
from kgen.gates.modeleval.plan import SMALL
from kgen.gates.modeleval.sides import LATE, MUTANT, Left, Part, Record
from kgen.gates.modeleval.trial import Verdict
from kgen.records import Status


def test_every_side_of_every_model_runs_and_the_brief_ones_in_the_first_model_only() -> None:
    sides = ["float64", "stock", "candidate"]
    assert names(trial()) == [
        *(f"{side} {DRAWN}" for side in sides),
        *(f"{side} nano" for side in sides),
        f"off {DRAWN}",
        *(f"mutant moe_shared {d} {DRAWN}" for d in DEFECTS),
    ]


def test_without_trained_weights_the_small_model_has_no_part() -> None:
    assert not [name for name in names(trial(trained=False)) if name.endswith(" nano")]


def test_a_model_without_exercises_has_no_part_and_switched_off_takes_the_next() -> None:
    brief = replace(BRIEF, way=Way(SMALL))
    first = names(trial({DRAWN: (), SMALL: (brief,)}))[:4]
    assert first == [
        "float64 nano",
        "stock nano",
        "candidate nano",
        "off nano",
    ]


def test_parts_hold_the_builds_that_sit_in_their_exercises() -> None:
    parts = {p.name: p for p in trial().parts()}
    assert [b.record.problem.tokens for b in parts[f"candidate {DRAWN}"].builds] == [4, 8]
    assert [b.record.problem.tokens for b in parts["candidate nano"].builds] == [4]
    assert parts[f"stock {DRAWN}"].builds == () == parts[f"float64 {DRAWN}"].builds
    assert [b.record.problem.tokens for b in parts[f"off {DRAWN}"].builds] == [4, 8]
    assert parts[f"off {DRAWN}"].exercises == (BRIEF,)
    mutant = parts[f"mutant moe_shared tile_scale {DRAWN}"]
    assert mutant.builds == (MUTANTS[0],)
    assert mutant.exercises == (replace(BRIEF, modes=(GRAPH,)),)


def test_a_mutant_runs_in_every_model_where_it_sits() -> None:
    other = replace(BRIEF, requests=2, count=2)
    small = replace(BRIEF, way=Way(SMALL))
    builds = (*BUILDS, stand("x", 2, kernels=[KERNEL]))
    made = trial({DRAWN: (other, PLAIN), SMALL: (small,)}, builds=builds)
    assert [p.model for p in made.parts() if p.kind == MUTANT] == [SMALL, SMALL]
    made = trial({DRAWN: (BRIEF, PLAIN), SMALL: (small,)})
    assert [p.model for p in made.parts() if p.kind == MUTANT] == [DRAWN, SMALL, DRAWN, SMALL]


@pytest.mark.parametrize("blind", [(), (DRAWN,), (SMALL,), (DRAWN, SMALL)])
def test_a_mutant_is_refused_where_the_rows_of_any_model_refuse_it(blind: tuple[str, ...]) -> None:
    name = "moe_shared tile_scale"
    changes = {f"mutant__{name}__{model.replace('-', '_')}": as_good_as_stock for model in blind}
    changes |= {f"mutant__{name}__{model}": as_good_as_stock for model in blind}
    made = trial({DRAWN: (BRIEF, PLAIN), SMALL: (replace(BRIEF, way=Way(SMALL)),)}, **changes)
    verdict, shown = run(made), made.evidence["mutants"][name]
    if len(blind) == 2:
        assert verdict.code == "fullmodel.insensitive"
        assert f"{name} passed in {DRAWN} and {SMALL}" in verdict.message
        assert (shown["refused"], shown["model"], shown["breaches"]) == (False, f"{DRAWN}, {SMALL}", 0)
        assert made.evidence["insensitive"].keys() == {"moe_shared"}
    else:
        assert verdict.code == "fullmodel.pass", verdict.message
        assert (shown["refused"], shown["model"]) == (True, SMALL if blind == (DRAWN,) else DRAWN)
        assert shown["passed_in"] == list(blind)


def test_beside_a_mutant_sit_the_candidates_of_the_other_ops() -> None:
    other = stand("x", 4, op="attn_res", kernels=[KERNEL])
    parts = trial(builds=(*BUILDS, other), ops=("moe_shared", "attn_res")).parts()
    own = {p.label: [b.record.problem.op for b in p.builds] for p in parts if p.kind == MUTANT}
    assert own["moe_shared tile_scale"] == ["moe_shared", "attn_res"]


def test_processes_start_longest_first() -> None:
    made = trial()
    run(made)
    assert made.starter.order == [  # type: ignore[attr-defined]
        "stock nano",
        "candidate nano",
        f"float64 {DRAWN}",
        f"stock {DRAWN}",
        f"candidate {DRAWN}",
        "float64 nano",
        f"off {DRAWN}",
        *(f"mutant moe_shared {d} {DRAWN}" for d in DEFECTS),
    ]


def test_an_honest_candidate_passes_and_the_message_says_by_how_much() -> None:
    heard: list[str] = []
    made = trial(not_run={"drift": "no seat"})
    made.say = heard.append
    verdict = run(made)
    assert (verdict.status, verdict.code) == (Status.PASS, "fullmodel.pass"), verdict.message
    assert verdict.message.startswith("3 exercises; hidden rows ")
    assert verdict.message.endswith("; launches as built; mutants refused; not run: drift")
    modes = [m for n in (DRAWN, SMALL) for m in made.evidence["models"][n]["rows"]["modes"].values()]
    worst = max(m["hidden"] for m in modes)
    assert f"hidden rows {worst[0]:.3f}x" in verdict.message and f"{worst[1]:.3f} to {worst[2]:.3f}" in verdict.message
    assert made.evidence["not_run"] == {"drift": "no seat"}
    assert made.evidence["seconds"][f"stock {DRAWN}"] == {"process": 2.0} and made.evidence["seconds"]["judge"] >= 0
    assert "unjudged" not in made.evidence and "not_reached" not in made.evidence
    assert set(made.evidence["attestation"]) == {DRAWN, SMALL}
    seen = made.evidence["mutants"]["moe_shared tile_scale"]
    assert (seen["refused"], seen["model"], seen["code"]) == (True, DRAWN, "fullmodel.logits")
    assert seen["breaches"] >= 1 and "as far from float64 as stock's" in seen["first"]
    assert sorted(heard) == sorted(f"{name}: 2 s" for name in names(made))


def test_the_message_of_a_plan_that_ran_whole_names_nothing_that_was_left_out() -> None:
    assert run(trial()).message.endswith("mutants refused")


def status(word: str, message: str = "boom", **more: Any) -> Change:
    return lambda part, left: replace(left, status=word, message=message, **more)


def without(mode: str) -> Change:
    def change(part: Part, left: Left) -> Left:
        return replace(left, records={k: r for k, r in left.records.items() if k[1] != mode})

    return change


def each_batch(edit: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def change(part: Part, left: Left) -> Left:
        changed = {k: replace(r, batches=tuple(edit(dict(b)) for b in r.batches)) for k, r in left.records.items()}
        return replace(left, records=changed)

    return change


def rows_with(noise: float, seed: int) -> Change:
    def change(part: Part, left: Left) -> Left:
        sizes = {e.name: (e.steps, e.rows) for e in part.exercises}
        new = {k: replace(r, tensors=tensors(*sizes[k[0]], noise, seed)) for k, r in left.records.items()}
        return replace(left, records=new)

    return change


farther, as_good_as_stock = rows_with(0.1, 50), rows_with(0.01, 60)


blind = each_batch(lambda b: {**b, **({"profiled": [{}]} if "profiled" in b else {})})
fewer = each_batch(lambda b: {**b, "counts": {k: {} for k in b["counts"]}} if b["mode"] == EAGER else b)
strange = each_batch(lambda b: {**b, "profiled": [{**b["profiled"][0], KERNEL: 1}]} if "profiled" in b else b)
added = each_batch(lambda b: {**b, "profiled": [{**b["profiled"][0], "x": 1}]} if "profiled" in b else b)


def tokens_moved(part: Part, left: Left) -> Left:
    def moved(record: Record) -> Record:
        return replace(record, tensors={**record.tensors, "logits": record.tensors["logits"].roll(1, -1)})

    return replace(left, records={k: moved(r) for k, r in left.records.items()})


MUTANT_NAME = f"mutant moe_shared tile_scale {DRAWN}"
CASES: dict[str, tuple[dict[str, Change], Status, str, str]] = {
    "a candidate that crashes": ({"candidate__nano": status("crashed")}, Status.FAIL, "crash", "candidate nano: boom" ),
    "a candidate that faults": ({"candidate__nano": status("fault")}, Status.FAIL, "crash", "candidate nano: boom"),
    "a candidate that hangs": ({"candidate__nano": status("hung")}, Status.FAIL, "crash", "candidate nano: boom"),
    "a candidate's runner that fails": (
        {"candidate__nano": status("error")}, Status.ERROR, "crash", "candidate nano: boom"
    ),
    "stock that crashes": ({"stock__nano": status("crashed")}, Status.ERROR, "crash", "stock nano: boom"),
    "stock that crashes beside a candidate": (
        {"stock__nano": status("crashed"), "candidate__nano_random": status("crashed")},
        Status.ERROR, "crash", "stock nano: boom",
    ),
    "a mutant that crashes": (
        {f"mutant__moe_shared tile_scale__{DRAWN}": status("crashed")},
        Status.ERROR, "insensitive", f"could not be tried: {MUTANT_NAME}: boom",
    ),
    "a process that was late": (
        {"stock__nano": lambda p, left: replace(left, status=LATE, message="60 s", records={})},
        Status.ERROR, "incomplete",
        f"out of time: stock nano did not reach {TRAINED.name} eager (60 s); run it again with more of it",
    ),
    "a record that is missing": (
        {"candidate__nano_random": without(GRAPH)},
        Status.ERROR, "incomplete", f"candidate {DRAWN}: {BRIEF.name} left no record of graph",
    ),
    "other weights": (
        {"stock__nano": lambda p, left: replace(left, weights={"nano": 6})},
        Status.ERROR, "incomplete", "stock nano has other weights of nano than float64 nano from the same seed",
    ),
    "a blind profiler": (
        {"stock__nano_random": blind}, Status.ERROR, "attestation",
        f"stock {DRAWN}: the profiler saw no kernel at all in replays of {BRIEF.name}; is CUPTI usable here?",
    ),
    "launches that are missing": ({"candidate__nano": fewer}, Status.FAIL, "attestation", "counted nothing, expected"),
    "a kernel of the candidate in stock": (
        {"stock__nano_random": strange, "off__nano_random": strange},
        Status.FAIL, "attestation", f"stock {DRAWN}: {BRIEF.name} shows kernels of the candidate: 1 x {KERNEL}",
    ),
    "a kernel of the candidate while it is switched off": (
        {"off__nano_random": strange}, Status.FAIL, "attestation",
        f"off {DRAWN}: {BRIEF.name} shows kernels of the candidate: 1 x {KERNEL}",
    ),
    "another kernel while it is switched off": (
        {"off__nano_random": added}, Status.FAIL, "attestation", "switched off, other kernels run than in stock: 1 x x",
    ),
    "other tokens while it is switched off": (
        {"off__nano_random": tokens_moved}, Status.FAIL, "attestation", "switched off, other tokens come out",
    ),
    "rows that are too far": (
        {"candidate__nano": farther}, Status.FAIL, "logits", "as far from float64 as stock's, allowed"
    ),
    "a mutant that looks like stock": (
        {f"mutant__moe_shared tile_scale__{DRAWN}": as_good_as_stock},
        Status.ERROR, "insensitive", f"mutant moe_shared tile_scale passed in {DRAWN}: this gate would not see such",
    ),
    "a fault outranks a mutant that was missed": (
        {f"mutant__moe_shared tile_scale__{DRAWN}": as_good_as_stock, "candidate__nano": farther},
        Status.FAIL, "logits", "as far from float64",
    ),
    "launches outrank numbers": (
        {"candidate__nano": lambda p, left: farther(p, fewer(p, left))}, Status.FAIL, "attestation", "counted nothing"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_a_trial_ends_with_what_explains_most(what: str) -> None:
    changes, wanted, code, says = CASES[what]
    verdict = run(trial(**changes))
    assert (verdict.status, verdict.code) == (wanted, f"fullmodel.{code}"), verdict.message
    assert says in verdict.message and "\n" not in verdict.message


def test_what_a_late_process_did_not_reach_is_kept_in_the_evidence() -> None:
    made = trial(stock__nano=lambda p, left: replace(left, status=LATE, message="60 s", records={}))
    run(made)
    assert made.evidence["not_reached"] == [f"stock nano did not reach {TRAINED.name} eager (60 s)"]


def test_a_missed_mutant_is_recorded_as_not_refused() -> None:
    made = trial(**{f"mutant__moe_shared tile_scale__{DRAWN}": as_good_as_stock})
    run(made)
    assert made.evidence["mutants"]["moe_shared tile_scale"] == {
        "refused": False, "model": DRAWN, "code": "", "first": "", "breaches": 0, "passed_in": [DRAWN],
    }  # fmt: skip
    assert made.evidence["mutants"]["moe_shared drop_last_k"]["refused"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"models": {DRAWN: (BRIEF, PLAIN)}}, "the small model has no builds: its tasks were not measured"),
        ({"trained": False}, "no trained weights at weights.st: the tasks were not measured"),
        (
            {"unseated": ("a", "b", "c", "d", "e")},
            "built, but in no seat of a decode model: a; b; c; and 2 more",
        ),
        ({"unseated": ("a", "b", "c")}, "built, but in no seat of a decode model: a; b; c"),
    ],
)
def test_what_could_not_be_judged_is_no_pass(changed: dict[str, Any], says: str) -> None:
    made = trial(**changed)
    verdict = run(made)
    assert (verdict.status, verdict.code, verdict.message) == (Status.ERROR, "fullmodel.incomplete", says)
    assert made.evidence["unjudged"] == [says]


def test_what_could_not_be_judged_outranks_a_missed_mutant_but_no_fault() -> None:
    missed = {f"mutant__moe_shared tile_scale__{DRAWN}": as_good_as_stock}
    assert run(trial(unseated=("a",), **missed)).code == "fullmodel.incomplete"
    far = {"candidate__nano_random": farther}
    assert run(trial(unseated=("a",), **far)).code == "fullmodel.logits"


def test_an_op_without_a_seat_cannot_be_evaluated() -> None:
    keys = tuple(b.record.problem.key for b in BUILDS)
    made = trial(unseated=keys)
    assert run(made) == Verdict(
        Status.ERROR,
        "fullmodel.incomplete",
        "no decode model has a seat for the builds of moe_shared: it cannot be evaluated, and so not promoted"
        f" ({'; '.join(keys)})",
    )
    assert made.starter.order == []  # type: ignore[attr-defined]
    assert run(trial(unseated=keys[:1], ops=("moe_shared", "attn_res", "kda_core"))).message == (
        f"no decode model has a seat for the builds of attn_res, kda_core: they cannot be evaluated ({keys[0]})"
    )


@pytest.mark.parametrize(
    ("mutants", "missing"),
    [((), "moe_shared tile_scale or moe_shared drop_last_k"), (MUTANTS[:1], "moe_shared drop_last_k")],
)
def test_without_every_mutant_nothing_is_started(mutants: tuple[Stand, ...], missing: str) -> None:
    made = trial(mutants=mutants)
    assert run(made) == Verdict(
        Status.ERROR,
        "fullmodel.insensitive",
        f"no mutant of {missing} was built, so that nothing shows what this gate can see",
    )
    assert made.starter.order == []  # type: ignore[attr-defined]


def test_the_loss_that_tasks_may_show_is_the_devices() -> None:
    assert trial()._loss() == limits.ACCURACY_LOSS["cpu"] == 0.15
    assert trial(device="cuda")._loss() == limits.ACCURACY_LOSS["cuda"] == 0.01


def test_a_process_that_failed_is_announced_with_its_words() -> None:
    heard: list[str] = []
    made = trial(stock__nano=status("crashed", seconds=3.6))
    made.say = heard.append
    run(made)
    assert "stock nano: 4 s: crashed, boom" in heard
