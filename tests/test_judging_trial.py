"""What a trial of the model evaluation starts, and in which order; and findings that only some exercises bring."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from support.modeleval import stand
from support.trial import BRIEF, BUILDS, DEFECTS, DRAWN, KERNEL, MUTANTS, PLAIN, TRAINED, Change, names, run, trial

from kgen.gates.modeleval.exercise import CONSTRAINED, EAGER, GRAPH, SAMPLING, Exercise, Way
from kgen.gates.modeleval.plan import SMALL
from kgen.gates.modeleval.sides import MUTANT, OFF, Left, Part
from kgen.gates.modeleval.trial import Trial
from kgen.records import Status

SMALL_BRIEF = replace(BRIEF, way=Way(SMALL))
OTHER = stand("x", 4, op="attn_res", kernels=[KERNEL])
DRAWS = Exercise(SAMPLING, Way(DRAWN), 4, 4, 8, (EAGER,), draws=4)
WORDS = Exercise(CONSTRAINED, Way(DRAWN), 4, 4, 8, (EAGER,), items=4)


def test_only_the_first_model_is_run_switched_off() -> None:
    made = trial({DRAWN: (BRIEF,), SMALL: (SMALL_BRIEF,)})
    assert [p.name for p in made.parts() if p.kind == OFF] == [f"off {DRAWN}"]


def test_a_part_without_exercises_is_not_started() -> None:
    assert names(trial({DRAWN: (PLAIN,)})) == [f"{kind} {DRAWN}" for kind in ("float64", "stock", "candidate")]


def test_each_ops_mutants_are_its_own() -> None:
    others = tuple(stand(d, 4, d, op="attn_res", kernels=[f"{d}_kernel"]) for d in DEFECTS)
    made = trial(ops=("moe_shared", "attn_res"), builds=(*BUILDS, OTHER), mutants=(*MUTANTS, *others))
    parts = [p for p in made.parts() if p.kind == MUTANT]
    broken = {p.label: [b.record.problem.op for b in p.builds if b.record.defect] for p in parts}
    assert broken == {f"{op} {d}": [op] for op in ("moe_shared", "attn_res") for d in DEFECTS}
    for part in parts:  # beside it sit the sound builds of the other ops alone
        assert part.label.split()[0] not in {b.record.problem.op for b in part.builds if not b.record.defect}


def test_a_mutant_runs_in_the_last_mode_of_an_exercise_also_where_that_is_the_only_one() -> None:
    made = trial({DRAWN: (replace(BRIEF, modes=(EAGER,)), replace(BRIEF, requests=8, count=8, steps=4))})
    modes = [[e.modes for e in p.exercises] for p in made.parts() if p.kind == MUTANT]
    assert modes == [[(EAGER,)]] * 2
    both = trial({DRAWN: (BRIEF,)})
    assert [[e.modes for e in p.exercises] for p in both.parts() if p.kind == MUTANT] == [[(GRAPH,)]] * 2


def started(made: Trial) -> list[str]:
    run(made)
    return list(made.starter.order)  # type: ignore[attr-defined]


def test_the_small_models_float64_and_what_is_short_start_last_wherever_the_models_stand() -> None:
    second = replace(BRIEF, way=Way(DRAWN, depth=4))
    made = trial({SMALL: (TRAINED,), DRAWN: (BRIEF,), "slice": (second,)})
    order = started(made)
    assert order[:8] == [
        "stock nano", "candidate nano", f"float64 {DRAWN}", "float64 slice", f"stock {DRAWN}", f"candidate {DRAWN}",
        "stock slice", "candidate slice",
    ]  # fmt: skip
    assert order[8] == "float64 nano" and {name.split()[0] for name in order[9:]} == {"mutant"}


def test_a_mutants_replays_need_no_profiler_and_its_launches_are_not_judged() -> None:
    """Its process is not told to profile, and what it launches is not what the candidate's records say."""

    def bare(part: Part, left: Left) -> Left:
        changed = {}
        for key, record in left.records.items():
            batches = tuple({**b, "profiled": [{}], "counts": {}, "captured": {}, "warm": {}} for b in record.batches)
            changed[key] = replace(record, batches=batches)
        return replace(left, records=changed)

    verdict = run(trial(**{f"mutant__moe_shared tile_scale__{DRAWN}": bare}))
    assert (verdict.status, verdict.code) == (Status.PASS, "fullmodel.pass"), verdict.message


def test_without_small_builds_it_does_not_matter_whether_there_are_weights() -> None:
    made = trial({DRAWN: (BRIEF, PLAIN)}, trained=False)
    run(made)
    assert made.evidence["unjudged"] == ["the small model has no builds: its tasks were not measured"]


def with_tensors(exercise: Exercise, make: Callable[[], dict[str, torch.Tensor]], **words: str) -> Change:
    def change(part: Part, left: Left) -> Left:
        key = (exercise.name, EAGER)
        return replace(left, records={**left.records, key: replace(left.records[key], tensors=make(), words=words)})

    return change


def drawn(not_drawn: int = 0, **counts: list[int]) -> Change:
    table = torch.tensor(counts.get("cells", [100, 100, 100])).expand(2, 2, -1)
    return with_tensors(DRAWS, lambda: {"counts": table, "not_drawn": torch.tensor([not_drawn])})


def sampled(candidate: Change) -> Any:
    made = trial(
        {DRAWN: (BRIEF, DRAWS), SMALL: (TRAINED,)}, stock__nano_random=drawn(), candidate__nano_random=candidate
    )
    return run(made), made.evidence["models"][DRAWN]


def test_rules_on_tokens_decide_too_and_their_numbers_are_kept() -> None:
    verdict, numbers = sampled(drawn())
    assert verdict.code == "fullmodel.pass", verdict.message
    assert set(numbers) == {"rows", f"{DRAWS.name} eager"} and numbers[f"{DRAWS.name} eager"]["draws"] == 300
    verdict, _ = sampled(drawn(cells=[200, 50, 50]))
    assert (verdict.status, verdict.code) == (Status.FAIL, "fullmodel.sampling")


def test_of_several_breaches_the_one_that_explains_most_names_the_result() -> None:
    """Rows that are too far explain other draws."""

    def both(part: Part, left: Left) -> Left:
        left = drawn(cells=[200, 50, 50])(part, left)
        far = {
            key: replace(record, tensors={n: 1.5 * t for n, t in record.tensors.items()})
            for key, record in left.records.items()
            if key[0] == BRIEF.name
        }
        return replace(left, records={**left.records, **far})

    verdict, _ = sampled(both)
    assert (verdict.status, verdict.code) == (Status.FAIL, "fullmodel.logits")
    assert verdict.message.startswith(f"{BRIEF.name} eager: the hidden rows are")


def test_what_brings_no_numbers_is_not_in_the_evidence() -> None:
    lacks = with_tensors(WORDS, dict, lacks="needs a library")
    made = trial({DRAWN: (BRIEF, WORDS), SMALL: (TRAINED,)}, stock__nano_random=lacks, candidate__nano_random=lacks)
    verdict = run(made)
    assert (verdict.code, made.evidence["unjudged"]) == (
        "fullmodel.incomplete", [f"{WORDS.name} eager: needs a library"],
    )  # fmt: skip
    assert set(made.evidence["models"][DRAWN]) == {"rows"}


def test_of_a_mutant_the_first_breach_is_kept() -> None:
    made = trial()
    run(made)
    for defect in DEFECTS:
        seen = made.evidence["mutants"][f"moe_shared {defect}"]
        assert seen["breaches"] > 1 and seen["first"].startswith(f"{BRIEF.name} graph: the hidden rows are surely")
