"""The bug corpus: every broken kernel is found under every schedule, no right one has a finding.

What is run is the kept PTX; that it is what the compiler makes of the sources is checked on five kernels drawn anew
each time, and on all of them under `make deep`.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from ptx_corpus.build import build, entries, installed, load
from ptx_corpus.cases import CASES
from ptx_corpus.entries import SEEDS, Change, right, sha256
from ptx_corpus.faults import FAULTS
from ptx_corpus.judge import verdicts
from ptx_corpus.page import markdown
from ptx_corpus.variants import VARIANTS

ROOT = Path(__file__).parents[1]
KEPT = load()
RIGHT = (*(right(name) for name in CASES), *VARIANTS)
AGAIN = "cd tests && python -m ptx_corpus.build && python -m ptx_corpus.page > ../docs/ptx-corpus.md"
SAMPLE = 5


def name(change: Change) -> str:
    return change.key


@pytest.mark.parametrize("change", RIGHT, ids=name)
def test_a_right_kernel_gives_right_numbers_and_no_finding(change: Change) -> None:
    for seed, verdict in zip(SEEDS, verdicts(change, KEPT[change.key]), strict=True):
        assert verdict.right and not verdict.found, f"seed {seed}: {verdict.words()}"


@pytest.mark.parametrize("change", FAULTS, ids=name)
def test_a_broken_kernel_has_its_finding_under_every_schedule_that_comes_to_it(change: Change) -> None:
    for seed, verdict in zip(SEEDS, verdicts(change, KEPT[change.key]), strict=True):
        assert not verdict.result.skipped, verdict.result.skipped
        if seed in change.unseen:
            assert not verdict.found, f"seed {seed} sees more than the table says: {verdict.words()}"
            continue
        assert verdict.meets(change), f"seed {seed}: wanted {change.finding} on {change.tensor!r}\n{verdict.words()}"


@pytest.mark.parametrize("change", FAULTS, ids=name)
def test_a_finding_names_the_instruction_and_who_executed_it(change: Change) -> None:
    kept = KEPT[change.key]
    lines = kept.ptx.splitlines()
    launched = {one.kernel: one for one in kept.launches}
    for finding in verdicts(change, kept)[0].result.findings:
        said, launch = finding.instruction.split()[0], launched[finding.kernel]
        assert said in lines[finding.line - 1]
        assert all(at < size for at, size in zip(finding.block, launch.grid, strict=True))
        assert all(at < size for at, size in zip(finding.thread, launch.block, strict=True))


def test_no_defect_was_optimised_away() -> None:
    code = {key: (k.ptx.partition(".visible")[2], k.launches) for key, k in KEPT.items()}
    assert not [c.key for c in FAULTS if code[c.key] == code[f"{c.kernel}.right"]]


def test_what_is_kept_was_built_from_the_sources_as_they_are() -> None:
    assert {c.key: sha256(c.source()) for c in entries()} == {k: v.source_sha256 for k, v in KEPT.items()}, AGAIN


def test_the_corpus_has_as_many_kernels_as_was_asked_for() -> None:
    assert len({c.key for c in FAULTS}) == len(FAULTS) >= 30
    assert len({c.key for c in RIGHT}) == len(RIGHT) >= 30
    assert len({c.source() for c in (*FAULTS, *RIGHT)}) == len(FAULTS) + len(RIGHT)
    assert {c.kernel for c in FAULTS} == set(CASES), "every right kernel has a broken neighbour"


def test_the_page_says_what_is_found() -> None:
    assert (ROOT / "docs" / "ptx-corpus.md").read_text(encoding="utf-8") == markdown(KEPT), AGAIN


def same_as_kept(changes: Sequence[Change], cache: Path) -> None:
    """The same text where the compiler is the one that made what is kept; else the same findings."""
    made, failed = build(changes, cache)
    assert not failed, failed
    for change in changes:
        fresh, kept = made[change.key], KEPT[change.key]
        if installed() == kept.compiler:
            assert fresh == kept, f"{change.key}: {AGAIN}"
        for seed, verdict in zip(SEEDS, verdicts(change, fresh), strict=True):
            good = verdict.meets(change) if change.finding else verdict.right and not verdict.found
            assert good or seed in change.unseen, verdict.words()


def test_kernels_drawn_at_random_compile_to_what_is_kept(tmp_path: Path) -> None:
    same_as_kept(random.sample(entries(), SAMPLE), tmp_path)


@pytest.mark.deep
def test_all_kernels_compile_to_what_is_kept(tmp_path: Path) -> None:
    same_as_kept(entries(), tmp_path)
