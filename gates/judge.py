"""What the judge knows and the runner does not: references, the stock op's own distance, and the pass rule.

`expected(op, problem, values)` gives the three answers to one call, `Chain` those to consecutive calls on a state, and
`judge_outputs` compares kept outputs with them. The rules themselves are kgen.contract.rules and the op's hard rules.
Not covered here: anything that needs no answer (guards, repeat runs: the runner's part).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kgen.contract import Errors, Op, Role, TensorSpec, Values
from kgen.gates.rows import with_tokens
from kgen.records import Problem

Tensors = dict[str, torch.Tensor]
HARD_RULE = "hard_rule"
JOINED_ROWS = 1024  # of calls that are judged in one pass: their states and float64 copies have to fit


@dataclass(frozen=True)
class Expected:
    """Outputs and new states of one call: the stock op's, the rounded float64 and the true float64 reference's."""

    stock: Tensors
    rounded: Tensors
    true: Tensors


@dataclass(frozen=True)
class Row:
    """One line of the numeric table; `errors` is None for an exact tensor. `complaint` is "" when it passes."""

    problem: str
    what: str  # family, padded count, graph turn, timed column
    output: str
    seed: int
    errors: Errors | None
    allowed_true: float
    allowed_rounded: float
    code: str = ""
    complaint: str = ""

    @property
    def strain(self) -> float:
        """How much of what is allowed is used; above 1 fails."""
        if self.errors is None:
            return 2.0 if self.complaint else 0.0
        parts = ((self.errors.candidate_true, self.allowed_true), (self.errors.candidate_rounded, self.allowed_rounded))
        return max(got / allowed if allowed > 0 else (0.0 if got == 0 else float("inf")) for got, allowed in parts)

    def as_json(self) -> dict[str, Any]:
        body = {k: v for k, v in vars(self).items() if v != "" and k != "errors"}
        return {**body, **(vars(self.errors) if self.errors else {}), "strain": self.strain}


def expected(op: Op, problem: Problem, values: Values) -> Expected:
    return Expected(
        stock=op.stock(problem)(values),
        rounded=op.reference(problem, values, rounded=True),
        true=op.reference(problem, values, rounded=False),
    )


class Chain:
    """Consecutive calls: each of the three answers carries its own state on."""

    def __init__(self, op: Op, problem: Problem, first: Values) -> None:
        self.op, self.problem = op, problem
        self.states = [t.name for t in op.present(problem) if t.role is Role.STATE]
        self.moving = [t.name for t in op.present(problem) if t.role is Role.IN]
        self.stock_run = op.stock(problem)
        self.stock, self.rounded, self.true = dict(first), dict(first), dict(first)
        self.before: Values = dict(first)

    def step(self, fresh: Values | None) -> Expected:
        """The answers to the next call; `fresh` replaces the moving inputs and the scalars."""
        if fresh is not None:
            moving = {k: v for k, v in fresh.items() if k in self.moving or not isinstance(v, torch.Tensor)}
            for values in (self.stock, self.rounded, self.true):
                values.update(moving)
        self.before = {**self.rounded, **{n: self._stored(n) for n in self.states}}
        answer = Expected(
            stock=self.stock_run(self.stock),
            rounded=self.op.reference(self.problem, self.rounded, rounded=True),
            true=self.op.reference(self.problem, self.true, rounded=False),
        )
        for values, got in ((self.stock, answer.stock), (self.rounded, answer.rounded), (self.true, answer.true)):
            values.update({n: got[n] for n in self.states})
        return answer

    def _stored(self, name: str) -> torch.Tensor:
        """A state of the rounded chain as a kernel would find it."""
        return _tensor(self.rounded, name).to(_tensor(self.stock, name).dtype)


def expected_many(op: Op, problem: Problem, many: Sequence[Values]) -> list[Expected]:
    """`expected` for several calls that share weights and scalars; in few passes over all rows where the op `joins`."""
    alike = all(values[s.name] == many[0][s.name] for values in many for s in op.scalars)
    if not many or not alike or not joins(op, problem):
        return [expected(op, problem, values) for values in many]
    first = next(t for t in _moving(op, problem) if t.role is not Role.OUT)
    count = _tensor(many[0], first.name).shape[_rows(first)]
    each = max(1, JOINED_ROWS // count)
    passes = [many[start : start + each] for start in range(0, len(many), each)]
    return [answer for some in passes for answer in _joined(op, problem, some, count)]


def joins(op: Op, problem: Problem) -> bool:
    """Token rows in, token rows out, nothing else that moves: then calls can be judged together."""
    moving = _moving(op, problem)
    rows = all(t.token_dim is not None and t.shape[t.token_dim] == "tokens" for t in moving)
    return rows and any(t.role is not Role.OUT for t in moving)


def _joined(op: Op, problem: Problem, many: Sequence[Values], count: int) -> list[Expected]:
    """The calls' rows one behind the other as one call, and its answers cut up again."""
    given = [t for t in _moving(op, problem) if t.role is not Role.OUT]
    rows = {t.name: torch.cat([_tensor(v, t.name) for v in many], _rows(t)) for t in given}
    whole = expected(op, with_tokens(problem, count * len(many)), {**many[0], **rows})
    dims = {t.name: _rows(t) for t in op.outputs(problem)}

    def part(got: Tensors, number: int) -> Tensors:
        return {name: t.narrow(dims[name], number * count, count) for name, t in got.items()}

    return [Expected(part(whole.stock, i), part(whole.rounded, i), part(whole.true, i)) for i in range(len(many))]


def _moving(op: Op, problem: Problem) -> list[TensorSpec]:
    return [t for t in op.present(problem) if t.role is not Role.WEIGHT]


def _rows(spec: TensorSpec) -> int:
    assert spec.token_dim is not None
    return spec.token_dim


def _tensor(values: Values, name: str) -> torch.Tensor:
    value = values[name]
    assert isinstance(value, torch.Tensor)
    return value


def judge_outputs(
    op: Op,
    problem: Problem,
    before: Values,
    got: Mapping[str, torch.Tensor],
    answer: Expected,
    what: str,
    seed: int,
    steps: int = 1,
) -> list[Row]:
    """One row per output and state, and one per breach of a hard rule; `steps`: calls on the state so far."""
    rows = []
    for spec in op.outputs(problem):
        name = spec.name
        tensors = got[name], answer.stock[name], answer.rounded[name], answer.true[name]
        judged = op.rule(spec).judge(*tensors, steps)
        complaint = f"{name}: {judged.complaint}" if judged.complaint else ""
        allowed = judged.allowed_true, judged.allowed_rounded
        rows.append(Row(problem.key, what, name, seed, judged.errors, *allowed, judged.code, complaint))
    for breach in op.hard_rules(problem, before, dict(got)):
        rows.append(Row(problem.key, what, "", seed, None, 0.0, 0.0, HARD_RULE, breach))
    return rows


class Table:
    """Rows by (problem, what, output): the most strained one of each is kept, with the number judged."""

    def __init__(self) -> None:
        self.worst: dict[tuple[str, str, str], Row] = {}
        self.judged: dict[tuple[str, str, str], int] = {}

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            key = (row.problem, row.what, row.output or row.complaint)
            self.judged[key] = self.judged.get(key, 0) + 1
            if key not in self.worst or row.strain > self.worst[key].strain:
                self.worst[key] = row

    def failed(self) -> list[Row]:
        return [row for row in self.worst.values() if row.complaint]

    def as_json(self) -> list[dict[str, Any]]:
        return [{**row.as_json(), "judged": self.judged[key]} for key, row in self.worst.items()]


def to_device(values: Mapping[str, torch.Tensor], device: str) -> Tensors:
    return {name: value.to(device) for name, value in values.items()}
