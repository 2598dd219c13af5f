"""Any bytes give a parser a value or its own one-line error: every found case, every seed, and some changed copies.

tests/fuzz/ holds the targets; `make fuzz` runs them longer, guided by coverage. Its finds lie in tests/fuzz/cases/.
"""

from random import Random

import pytest
from fuzz import guard
from fuzz.cases import cases, load
from fuzz.guard import attempt
from fuzz.mutate import MOST, mutate
from fuzz.target import Target, one_line
from fuzz.targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES, FEW = 20, 6  # of each target, and of the slow ones; `make fuzz` tries thousands
SLOW = ("replies", "streams", "ptx-run")
CASES = cases()


def crashed(target: Target, data: bytes) -> str:
    crash = attempt(target, data)
    return f"{crash.signature}: {crash.detail}" if crash else ""


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_once_broke_a_parser_does_so_no_more(path) -> None:
    assert not crashed(TARGETS[path.parent.name], load(path))


@pytest.mark.parametrize("name", TARGETS)
def test_changed_copies_of_real_inputs_break_no_promise(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        assert not crashed(target, seed)

    @settings(
        max_examples=FEW if name in SLOW else EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(target.seeds), st.integers(0, 2**32 - 1))
    def holds(seed: bytes, number: int) -> None:
        data = mutate(target.shape, seed, Random(number), target.seeds, target.words)
        assert not crashed(target, data)

    holds()


def _target(check) -> Target:
    return Target("probe", "", "", "", "bytes", lambda: [b"x"], check)


def test_the_watch_sees_what_it_is_there_for(tmp_path, monkeypatch) -> None:
    def spins(data: bytes) -> None:
        while True:
            pass

    kept: list[bytes] = []
    faults = {
        "KeyError": lambda data: {}[data],
        "AssertionError": lambda data: one_line("two\nlines"),
        "Touched": lambda data: (tmp_path / "file").write_bytes(data),
        "memory": lambda data: kept.append(data * (300 << 20)),
        "TooSlow": spins,
    }
    for kind, check in faults.items():
        monkeypatch.setattr(guard, "SECONDS", 0.3 if kind == "TooSlow" else 60.0)
        assert crashed(_target(check), b"x").startswith(kind)
    assert not crashed(_target(lambda data: None), b"x")


@pytest.mark.parametrize("shape", ["bytes", "text", "json", "elf"])
def test_a_change_depends_on_its_number_alone_and_stays_small(shape: str) -> None:
    seeds = [s for t in TARGETS.values() if t.shape == shape for s in t.seeds]
    made = [mutate(shape, seeds[n % len(seeds)], Random(n), seeds, (b"w",)) for n in range(60)]
    assert made == [mutate(shape, seeds[n % len(seeds)], Random(n), seeds, (b"w",)) for n in range(60)]
    assert len(set(made)) > 40 and max(map(len, made)) <= MOST
