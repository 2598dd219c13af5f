"""Calls of all ranks in the interpreter, as the judge asks for them and the runner makes them: a plain record each.

Every call has inputs, states and outputs of its own, so that each can be judged; weights, mailboxes and workspaces are
the same in all. Families of several steps have one state too, which is judged after the last call.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from kgen.contract import Op, Role, Values
from kgen.contract.ranks import of_rank
from kgen.gates.rows import rows_of, with_tokens
from kgen.gates.runner.numeric import step_seed
from kgen.records import Problem, SymmetricBuffer

IN_STEP = 0  # the order in which all warps of all ranks go in step
FIXED_ORDERS = (IN_STEP, 1)
LEAST_CALLS = 4
SEED_BITS, ORDER_BITS = 48, 30


@dataclass(frozen=True)
class Interleaving:
    """One family on all ranks: `calls` in a row, run once under each of `orders` on fresh mailboxes.

    `true_tokens` > 0: that many rows count, the rest of the bin is zero in the first run and garbage in the next.
    """

    SCHEMA: ClassVar[str] = "kgen.interleaving/1"
    id: int
    family: str
    seed: int
    calls: int
    one_state: bool
    orders: tuple[int, ...]
    true_tokens: int = 0

    @property
    def what(self) -> str:
        """How rows of the table name it."""
        return f"padded {self.true_tokens}" if self.true_tokens else self.family


def plan(op: Op, problem: Problem, symmetric: Sequence[SymmetricBuffer], first: int) -> list[Interleaving]:
    """Every family, then the padded counts of the bin; numbers from `first` on, fresh secret seeds and orders.

    Each parity of each mailbox comes twice. An artefact's first family runs under three orders; the other families
    under two at the first artefact, whose `first` is 0, and at the others under one that is drawn.
    """
    calls = max([LEAST_CALLS, *(2 * each.parities for each in symmetric)])
    drafts = [(f.name, f.steps > 1, 0) for f in op.families]
    padded = [n for n in op.pack.padded if op.bin_for(n) == problem.tokens and not op.refuses(with_tokens(problem, n))]
    drafts += [(op.families[0].name, False, n) for n in padded]
    made = []
    for number, (family, one_state, true_tokens) in enumerate(drafts):
        fixed = FIXED_ORDERS if number == 0 else FIXED_ORDERS[:1] if not first or true_tokens else ()
        orders = (*fixed, 2 + secrets.randbits(ORDER_BITS))
        seed = secrets.randbits(SEED_BITS)
        made.append(Interleaving(first + number, family, seed, calls, one_state, orders, true_tokens))
    return made


def drawn(op: Op, problem: Problem, check: Interleaving) -> list[Values]:
    """Values of all ranks, a call each; where there is one state, the first call's stands in all of them."""
    each = [op.inputs(problem, check.family, step_seed(check.seed, n), "cpu") for n in range(check.calls)]
    roles = (Role.WEIGHT, Role.STATE) if check.one_state else (Role.WEIGHT,)
    kept = {t.name: each[0][t.name] for t in op.present(problem) if t.role in roles}
    return [{**values, **kept} for values in each]


def cut(op: Op, problem: Problem, values: Values, count: int) -> Values:
    """The first `count` tokens' rows of every rank; all of them for 0."""
    if not count:
        return values
    ranks = next(v.shape[0] for v in values.values() if isinstance(v, torch.Tensor))
    each = [rows_of(op, problem, of_rank(values, rank), count) for rank in range(ranks)]
    return {
        name: torch.stack([of[name] for of in each]) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }
