"""The timing module on the CPU, and the bootstrap by a second route: numbers that can be worked out without a GPU."""

import random
import statistics as python_statistics

import pytest
import torch

from kgen.gates import timing
from kgen.gates.statistics import median, ratio_interval
from kgen.gates.timing import Clock, Replay, Side, capture, interleave

MB = 1 << 20


@pytest.mark.parametrize(
    ("touched", "l2", "allocated", "sets"),
    [
        (MB, 10 * MB, 0, 30),
        (MB, 10 * MB + 1, 0, 31),
        (100 * MB, MB, 0, 3),
        (1, 50 * MB, 0, 64),
        (0, 50 * MB, 0, 64),
        (0, 10, 0, 30),
        (MB, 10 * MB, 1 << 30, 16),
        (MB, 10 * MB, 17 << 30, 1),
        (MB, 0, 0, 3),
    ],
)
def test_a_rotation_has_as_many_sets_as_three_times_the_l2_needs(
    touched: int, l2: int, allocated: int, sets: int
) -> None:
    assert timing.sets_needed(touched, l2, allocated) == sets


@pytest.mark.parametrize(("sets", "calls"), [(1, 24), (3, 24), (5, 25), (7, 28), (24, 24), (25, 25), (64, 64)])
def test_a_graph_runs_whole_rotations_of_at_least_24_calls(sets: int, calls: int) -> None:
    assert timing.calls_for(sets) == calls


def test_without_a_gpu_there_is_no_l2_and_no_driver_to_ask() -> None:
    assert timing.l2_bytes("cpu") == 0 and timing.refuse_persisting_l2("cpu") is False


def test_a_capture_runs_each_distinct_call_once_and_a_replay_all_in_order() -> None:
    heard: list[str] = []

    def first() -> None:
        heard.append("first")

    def second() -> None:
        heard.append("second")

    replay = capture([first, second, first], "cpu")
    assert isinstance(replay, Replay) and heard == ["first", "second"]
    heard.clear()
    replay()
    assert heard == ["first", "second", "first"] and replay.calls == [first, second, first]


def test_a_cpu_clock_says_that_it_is_no_evidence_and_measures_microseconds() -> None:
    clock = Clock("cpu")
    assert clock.timer("graph") == timing.CPU_TIMER and not clock.on_gpu
    ran: list[int] = []
    clock.flush()
    clock.warm([lambda: ran.append(1)])
    assert ran == [], "no GPU's clocks to raise"
    elapsed = clock.measure(lambda: torch.zeros(100_000).sum())
    assert 0.5 < elapsed < 5e6
    assert 20_000 <= clock.measure(lambda: _sleep(0.02)) < 5e6


def _sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


class Told(Clock):
    """Says what it was told to, and when it flushed."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.log: list[object] = []

    def warm(self, works: object) -> None:
        self.log.append(("warm", len(works)))  # type: ignore[arg-type]

    def flush(self) -> None:
        self.log.append("flush")

    def measure(self, work: timing.Call) -> float:
        work()
        return 12.0


@pytest.mark.parametrize("flush", [False, True])
def test_each_repetition_runs_every_side_once_between_its_hooks(flush: bool) -> None:
    clock, log = Told(), []

    def side(name: str, calls: int) -> Side:
        return Side(
            name,
            lambda: log.append((name, "work")),
            calls,
            lambda n: log.append((name, "before", n)),
            lambda n: log.append((name, "after", n)),
        )

    samples = interleave([side("a", 3), side("b", 4)], 2, clock, random.Random(1), flush)
    assert samples == {"a": [4.0, 4.0], "b": [3.0, 3.0]}
    assert clock.log == [("warm", 2), *["flush"] * (2 * 5 if flush else 0)]
    of_a = [entry[1:] for entry in log if entry[0] == "a"]
    settled = [("before", -1), ("work",)] * 3
    assert of_a == [*settled, ("before", 0), ("work",), ("after", 0), ("before", 1), ("work",), ("after", 1)]
    for at in range(0, 6, 2):  # the settling repetitions have two entries a side
        assert {entry[0] for entry in log[2 * at : 2 * at + 4]} == {"a", "b"}


def test_a_side_without_hooks_is_only_run() -> None:
    assert interleave([Side("a", lambda: None, 1)], 3, Told(), random.Random(1)) == {"a": [12.0] * 3}
    assert timing.nothing(0) is None


@pytest.mark.parametrize(
    "samples", [[3.0], [4.0, 1.0], [5.0, 1.0, 3.0], [1.0, 2.0, 8.0, 3.0], [2.0, 2.0, 9.0, 1.0, 7.0]]
)
def test_the_median_is_pythons(samples: list[float]) -> None:
    assert median(samples) == python_statistics.median(samples)


@pytest.mark.parametrize("count", [1, 2, 7, 10])
@pytest.mark.parametrize("resamples", [1, 40, 200])
def test_the_interval_is_the_percentiles_of_resampled_medians(count: int, resamples: int) -> None:
    made = random.Random(count)
    candidate = [made.uniform(1, 2) for _ in range(count)]
    baseline = [made.uniform(1, 2) for _ in range(count)]
    ratios = [c / b for c, b in zip(candidate, baseline, strict=True)]
    drawn = torch.randint(count, (resamples, count), generator=torch.Generator().manual_seed(5)).tolist()
    medians = sorted(python_statistics.median(ratios[i] for i in row) for row in drawn)
    want = (python_statistics.median(ratios), medians[int(0.025 * resamples + 1e-9)], medians[
        min(resamples - 1, int(0.975 * resamples))
    ])  # fmt: skip
    assert ratio_interval(candidate, baseline, 5, resamples) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(("candidate", "baseline"), [([], []), ([1.0], []), ([], [1.0]), ([1.0, 2.0], [1.0])])
def test_samples_that_are_not_paired_have_no_interval(candidate: list[float], baseline: list[float]) -> None:
    with pytest.raises(ValueError, match="paired samples needed"):
        ratio_interval(candidate, baseline, 1)
