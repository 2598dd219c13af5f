"""What the model evaluation's plan costs by counted kernels, and the counting itself."""

import pytest
import torch
from support.counting import counted
from support.modelcost import label, planned, steps_of, table

from kgen.gates.modeleval import plan as module
from kgen.gates.modeleval.exercise import FREE, TASKS
from kgen.gates.modeleval.plan import SMALL
from kgen.gates.modeleval.sides import CANDIDATE, FLOAT64, STOCK, exercises_of


def test_kernels_views_and_bytes_are_what_the_calls_say() -> None:
    a, b = torch.ones(8, 4), torch.ones(4, 2)
    tally = counted(lambda: (a[2:].T.reshape(2, -1), torch.empty(3), a @ b, a.add_(1)))
    assert tally.views == 3  # slice, transpose, and the view of what reshape copied
    assert tally.kernels == 3  # that copy, the product, the sum in place
    copied, product, added = 2 * 24, 32 + 8 + 16, 2 * 32
    assert tally.bytes == 4 * (copied + product + added)


def test_an_expanded_tensor_is_read_once_and_a_gather_reads_what_it_returns() -> None:
    wide, ids = torch.ones(1, 4).expand(1000, 4), torch.tensor([3, 1])
    assert counted(lambda: wide.sum()).bytes == 4 * (4 + 1)
    source = torch.ones(1000, 4)
    assert counted(lambda: source[ids]).bytes == 2 * 4 * 8


def test_only_the_long_generation_takes_thousands_of_steps_of_the_small_model() -> None:
    found = planned(dims=("k3-tp8", "nano"))
    small = found.models[SMALL]
    number = {label(e): sum(s.number for s in steps_of(e, CANDIDATE)) for e in small if e.kind != TASKS}
    assert number[FREE] >= 4096 and sum(number.values()) - number[FREE] < 2000
    (free,) = [e for e in small if e.kind == FREE]
    own, again = steps_of(free, STOCK)
    assert again.number * again.rows < 1.1 * own.number * own.rows and again.rows == 64
    exact = [s for exercises in found.models.values() for e in exercises_of(FLOAT64, exercises)
             for s in steps_of(e, FLOAT64)]  # fmt: skip
    assert sum(s.number for s in exact) < 1200


@pytest.mark.deep
def test_the_plans_table_is_the_computed_one() -> None:
    said = [line.strip() for line in (module.__doc__ or "").splitlines()]
    assert [line for line in table(planned()) if line and line.strip() not in said] == []
