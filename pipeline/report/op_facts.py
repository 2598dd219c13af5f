"""What an op contract says, as plain data and words: the one source of `kgen ops`, its JSON and the page of all ops.

    describe(op, rates) -> dict for JSON; with judged, hard_rules, costs, gpus for parts of it

Not here: what a kernel set holds (op_champions), how a page is laid out (ops_page, the commands).
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kgen.contract.op import Family, Op
from kgen.contract.ranks import AXIS, RankedOp
from kgen.contract.rules import ByOp, Codes, Exact, MaxAbs, RelL2, Rule
from kgen.contract.tensors import Role, TensorSpec
from kgen.gates.rates import MEASURED, READ_SHARE, Rates
from kgen.proposers import ranked_notes

COST_TOKENS = (1, 8, 64)
RANKS = "ranks"  # the dim symbol of an op whose real inputs come from that many GPUs
ARCH = "sm_90a"  # costs do not depend on it, problems name one
THERE = "this file's head"  # in a docstring of hard rules: they are those of the module's text, which is shown above
WITH_FORMULAS = "those stated with the formulas above, each of them for every call."
B300_NOMINAL = 8e12

GPUS: Mapping[str, Rates] = {
    "h200": MEASURED["NVIDIA H200"],
    "b300": Rates(READ_SHARE * B300_NOMINAL, B300_NOMINAL, "nominal by the datasheet; read taken as 93 %"),
}


@dataclass(frozen=True)
class CostRow:
    """Fewest bytes and operations of one call with the default axes and typical inputs, and its time at memory rate."""

    dims: str
    tokens: int
    bytes: int
    flops: int
    floor_us: float


def costs(op: Op, rates: Rates, names: tuple[str, ...] = ()) -> tuple[CostRow, ...]:
    """At COST_TOKENS, for each dims name (default: all with sizes of their own); what does not exist is left out."""
    rows = []
    for dims in names or tuple(op.dims):
        for tokens in COST_TOKENS:
            problem = next(op.points(dims, tokens, ARCH), None)
            if problem is not None:
                cost = op.cost(problem)
                rows.append(CostRow(dims, tokens, cost.bytes, cost.flops, cost.floor_us(rates.read)))
    return tuple(rows)


def gpus(op: Op, dims: str) -> int:
    """GPUs that the real op spans at these dims: of an op of several ranks as many as its default has."""
    if isinstance(op, RankedOp):
        return int(op.axes[AXIS][0])
    return op.dims[op.own_name(dims)].get(RANKS, 1)


def one_stands_in(op: Op, dims: str) -> bool:
    """Whether the gates run it on one GPU, which holds every rank's share, though it spans several."""
    return gpus(op, dims) > 1 and not isinstance(op, RankedOp)


def of_ranks(op: Op) -> tuple[str, ...]:
    """What an op of several ranks asks of a kernel beside its arguments; nothing for the others."""
    point = next(op.points(op.pack.small, op.pack.bins[0], ARCH), None)
    return ranked_notes.lines(op, point) if point is not None else ()


def sizes_of(op: Op) -> dict[str, dict[str, int]]:
    """Dim symbols by dims name, those included that take another name's sizes."""
    return {name: dict(op.dims[op.own_name(name)]) for name in op.names()}


def rule_words(rule: Rule) -> str:
    """How one output is judged, in words."""
    if isinstance(rule, Exact):
        return "bit for bit the rounded reference"
    if isinstance(rule, ByOp):
        return "by the hard rules alone"
    if isinstance(rule, RelL2):
        drift = f"; {rule.drift:g} after several calls on one state" if rule.drift is not None else ""
        return f"relL2 {rule.floor:g}{drift}{_own_words(rule, RelL2)}"
    if isinstance(rule, Codes):
        most = f"{1 - rule.unequal:.1%} of the codes equal, the others next to it"
        return f"{most}; relL2 {rule.floor:g} of the values{_own_words(rule, Codes)}"
    if isinstance(rule, MaxAbs):
        return f"no element off by more than {rule.limit:g}{_own_words(rule, MaxAbs)}"
    return _first_line(type(rule))


def _own_words(rule: Rule, base: type) -> str:
    """What a special form of a rule says of itself."""
    return "" if type(rule) is base else f" ({_first_line(type(rule))})"


def _first_line(of: object) -> str:
    text = inspect.getdoc(of) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def judged(op: Op) -> dict[str, str]:
    """Output or state -> how it is judged; forms of one argument that are judged alike share a line."""
    found: dict[str, str] = {}
    for spec in op.tensors:
        if spec.role in (Role.OUT, Role.STATE):
            words = rule_words(op.rule(spec))
            if found.get(spec.name, words) != words:
                words = f"{found[spec.name]}; {only_words(spec)}: {words}"
            found[spec.name] = words
    return found


def hard_rules(op: Op) -> str:
    """The docstring of the op's own `hard_rules`, "" where it has none of its own."""
    method = type(op).hard_rules
    said = "" if method is Op.hard_rules else " ".join((method.__doc__ or "").split())
    return WITH_FORMULAS if THERE in said else said


def only_words(spec: TensorSpec) -> str:
    """ "" or the axis values that an argument is there for."""
    return f"only with {spec.only[0]}={' or '.join(spec.only[1])}" if spec.only else ""


def notes(spec: TensorSpec) -> str:
    """What a caller of this argument has to know besides shape and dtype: "; "-joined, or ""."""
    padding = "" if spec.padding is None else f"padding rows hold {spec.padding}"
    pitched = "stride of the first dimension free" if spec.pitched else ""
    return "; ".join(part for part in (only_words(spec), pitched, padding) if part)


def formulas(op: Op) -> str:
    """The contract's text, headed by the op's name."""
    text = op.doc.strip()
    return text if text.startswith(f"{op.name}:") else f"{op.name}: {op.title}\n\n{text}"


def steps(family: Family) -> str:
    """ "" or how many calls, where its own text does not say."""
    known = family.steps == 1 or f"{family.steps} steps" in family.doc
    return "" if known else f" ({family.steps} steps)"


def short(number: float) -> str:
    """Two decimals, three below 0.1."""
    return f"{number:.3f}" if number < 0.1 else f"{number:.2f}"


def describe(op: Op, rates: Rates) -> dict[str, Any]:
    """The whole contract as JSON data."""
    return {
        "name": op.name,
        "title": op.title,
        "contract": op.contract_sha256(),
        "doc": op.doc,
        "gpus": {name: gpus(op, name) for name in op.names()},
        "dims": sizes_of(op),
        "runtime_dims": op.runtime_dims,
        "bins": op.pack.bins,
        "padded": op.pack.padded,
        "served": op.served,
        "tensors": [_tensor(op, spec) for spec in op.tensors],
        "scalars": [{"name": s.name, "dtype": s.dtype, "doc": s.doc, "sample": s.sample} for s in op.scalars],
        "axes": op.axes,
        "families": _by_name(op.families),
        "steps": {f.name: f.steps for f in op.families if f.steps > 1},
        "scenarios": _by_name(op.scenarios),
        "sweep": op.sweep,
        "floor": op.floor,
        "hard_rules": hard_rules(op),
        **({"several_ranks": said} if (said := of_ranks(op)) else {}),
        "chain": op.chain,
        "read_rate": rates.read,
        "costs": [vars(row) for row in costs(op, rates)],
    }


def _tensor(op: Op, spec: TensorSpec) -> dict[str, Any]:
    written = spec.role in (Role.OUT, Role.STATE)
    return {
        "name": spec.name,
        "dtype": spec.dtype,
        "shape": spec.shape,
        "role": spec.role,
        "doc": spec.doc,
        "only": {spec.only[0]: spec.only[1]} if spec.only else None,
        "pitched": spec.pitched,
        "padding": spec.padding,
        "rule": rule_words(op.rule(spec)) if written else None,
    }


def _by_name(families: tuple[Family, ...]) -> dict[str, str]:
    return {f.name: f.doc for f in families}
