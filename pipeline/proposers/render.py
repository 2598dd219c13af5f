"""Prompts from the templates in `kgen.prompts`: strict about undefined names, hashed as a set and as rendered.

Templates are ours and are trusted; everything else (op data, messages, sources) enters as values, which are never
evaluated as templates, and foreign text only through the `quoted` filter.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import jinja2

from kgen.contract import Op
from kgen.contract.rules import ByOp, Codes, Exact, MaxAbs, RelL2, Rule
from kgen.gates.rates import MEASURED
from kgen.proposers import constants, ranked_notes, techniques
from kgen.proposers.base import ProposalRequest, Situation
from kgen.proposers.feedback import SHOWN, feedback
from kgen.proposers.quoting import quoted
from kgen.records import Problem, canonical_json, sha256_bytes

READ_RATE = MEASURED["NVIDIA H200"].read  # bytes/s: the roofline of the reports
COST_TOKENS = (1, 8, 64)
THERE = "this file's head"  # in a docstring of hard rules: they are those of the module's text, which is shown


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. `templates_sha256` covers the whole template set, `sha256` both rendered texts."""

    template: str
    system: str
    user: str
    templates_sha256: str

    @property
    def sha256(self) -> str:
        return sha256_bytes(canonical_json([self.system, self.user]))

    def origin(self) -> dict[str, str]:
        """What an Origin remembers of the prompt."""
        return {"template": self.template, "templates_sha256": self.templates_sha256, "prompt_sha256": self.sha256}


class PromptSet:
    """The templates by relative name, e.g. `repair.md` or `ops/<op>.md`."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages = dict(pages)
        self.sha256 = sha256_bytes(canonical_json(self.pages))
        self._env = jinja2.Environment(
            loader=jinja2.DictLoader(self.pages),
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            keep_trailing_newline=True,
        )
        self._env.filters["quoted"] = quoted

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """Raises jinja2.UndefinedError when the template uses a name that has no value."""
        return self._env.get_template(name).render(**values)

    def prompt(self, request: ProposalRequest, index: int = 1) -> Prompt:
        """The prompt for candidate `index` of `request.count`; which template depends on the history."""
        now = request.situation
        measured, small = now is not None and now.measured, request.op.pack.small
        chosen = feedback(request.history, request.points, request.ask, request.costs, measured, small)
        by_op = techniques.chosen(request.op, self.pages, request.archs)
        alone = request.ask is not None and request.ask.count == 1
        values = {
            "op": op_values(request),
            "archs": ", ".join(request.archs),
            "notes": self._notes(request),
            "index": request.ask.index if request.ask and alone else index,
            "count": request.ask.of if request.ask and alone else request.count,
            "situation": situation_values(request, now) if now is not None else None,
            "answer": techniques.answering(chosen.classes, self.pages, request.archs, by_op),
            "news": _news(request, chosen.values["attempts"]),
            "made_of": _made_of(request, chosen.values.get("best")),
            **chosen.values,
        }
        guide = "\n".join([self.pages["guide.md"], *(techniques.text(self.pages[name]) for name in by_op)])
        system = self.render("system.md", {"guide": guide})
        return Prompt(chosen.template, system, self.render(chosen.template, values), self.sha256)

    def _notes(self, request: ProposalRequest) -> list[str]:
        """Notes on the op and on each architecture, where there are any."""
        own = self.pages.get(f"ops/{request.op.name}.md", "")
        facts = contract_notes(request, "More on this op" if own else "Notes on this op")
        pages = [own, facts, *(self.pages.get(f"arch/{arch}.md", "") for arch in request.archs)]
        return [page for page in pages if page]


@cache
def packaged() -> PromptSet:
    """The templates that this kgen is installed with."""
    return PromptSet(_pages(files("kgen.prompts"), ""))


def _pages(folder: Traversable, prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            found.update(_pages(entry, f"{prefix}{entry.name}/"))
        elif entry.name.endswith(".md"):
            found[prefix + entry.name] = entry.read_text(encoding="utf-8")
    return found


def op_values(request: ProposalRequest) -> dict[str, Any]:
    """The op contract as template values, for the dims and token bins of the request's problems."""
    op, problems = request.op, request.problems
    names = list(dict.fromkeys(p.dims for p in problems)) or list(op.dims)
    symbols = list(op.dims[names[0]])
    return {
        "name": op.name,
        "title": op.title,
        "formulas": op.doc.strip(),
        "tensors": [_tensor(t) for t in op.tensors],
        "scalars": [{"name": s.name, "dtype": s.dtype, "doc": s.doc, "typical": f"{s.sample:g}"} for s in op.scalars],
        "constants": ", ".join(f"{name} = {v:.9g}" for name, v in constants.of_formulas(type(op)).items()),
        "small": op.pack.small if op.pack.small in names else "",
        "served": _served(op, names),
        "exact": ", ".join(t.name for t in op.tensors if t.exact),
        "symbols": symbols,
        "dims": [{"name": n, "sizes": [op.dims[n][s] for s in symbols]} for n in names],
        "bins": ", ".join(map(str, sorted({p.tokens for p in problems} or op.pack.bins))),
        "axes": [_axis(op, name, choices) for name, choices in op.axes.items()],
        "floor": f"{op.floor:g}",
        "families": "; ".join(f"{f.name} ({f.doc})" for f in op.families),
        "costs": _costs(op, problems),
        "read_rate": f"{READ_RATE / 1e12:g}",
    }


def _served(op: Op, listed: Sequence[str]) -> str:
    """The dims that are served, with their sizes where the task's table does not have them."""
    sizes = {n: ", ".join(f"{s} {v}" for s, v in op.dims[n].items()) for n in op.dims if n != op.pack.small}
    return "; ".join(f"`{n}`" if n in listed else f"`{n}` ({said})" for n, said in sizes.items())


def situation_values(request: ProposalRequest, now: Situation) -> dict[str, Any]:
    """The run as template values."""
    return {
        **vars(now),
        "round": max(1, request.round),
        "judged": len(request.history),
        "minutes": f"{now.minutes:g}",
        "interpreted": _where(now.interpreted),
        "ranked": _where(now.ranked),
        "ranked_small": {p.dims for p in now.ranked} == {request.op.pack.small},
    }


def _news(request: ProposalRequest, attempts: Sequence[Mapping[str, str]]) -> dict[str, Any] | None:
    """What the last round brought, of the rows of attempts, and whether the best is one of them."""
    now = request.standings
    if now is None or request.round < 2:
        return None
    latest = {candidate[:SHOWN] for candidate in now.latest}
    best = now.places[0] if now.places else None
    rows = [row for row in attempts if row["id"] in latest]
    said = {"id": best.id[:SHOWN], "value": best.value, "new": best.id in now.latest} if best else None
    return {"rows": rows, "best": said} if rows else None


def _made_of(request: ProposalRequest, best: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Lines on the static cost of the candidate that is to be improved."""
    costs = request.standings.costs if request.standings and best else {}
    return next((lines for candidate, lines in costs.items() if best and candidate.startswith(best["id"])), ())


def _where(problems: Sequence[Problem]) -> str:
    """e.g. `nano` at tokens 1, 4."""
    found: dict[str, list[int]] = {}
    for p in problems:
        found.setdefault(p.dims, []).append(p.tokens)
    return "; ".join(f"`{name}` at tokens {', '.join(map(str, dict.fromkeys(n)))}" for name, n in found.items())


def _tensor(t: Any) -> dict[str, str]:
    only = f" (only where {t.only[0]} is {' or '.join(t.only[1])})" if t.only else ""
    shape = ", ".join(map(str, t.shape))
    return {"name": t.name, "dtype": t.dtype, "shape": shape, "role": str(t.role.value), "doc": t.doc + only}


def _axis(op: Op, name: str, choices: tuple[str, ...]) -> dict[str, str]:
    optional = ", ".join(dict.fromkeys(t.name for t in op.tensors if t.only and t.only[0] == name))
    return {"name": name, "choices": ", ".join(choices), "optional": optional}


def _costs(op: Op, problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    """Bytes, operations and floor time at a few token counts, once per dims."""
    chosen = {(p.dims, p.tokens): p for p in reversed(problems) if p.tokens in COST_TOKENS}
    rows = []
    for (dims, tokens), problem in sorted(chosen.items()):
        cost = op.cost(problem)
        us = cost.floor_us(READ_RATE)
        rows.append({"dims": dims, "tokens": tokens, "mb": cost.bytes / 1e6, "gflop": cost.flops / 1e9, "us": us})
    return rows


def contract_notes(request: ProposalRequest, title: str) -> str:
    """What of this contract is not as the templates say of every op, as a page; "" where there is nothing to add."""
    op = request.op
    points = request.problems or (next(op.points(op.pack.small, op.pack.bins[-1], "")),)
    of_ranks = ranked_notes.lines(op, points[-1])
    lines = [*_chosen(points), *of_ranks, *_layout_notes(op, points), *_judging_notes(op, points[-1])]
    parts = ["\n".join(f"* {line}" for line in lines), *_definitions(op)]
    text = "\n\n".join(part for part in parts if part)
    return f"## {title}\n\n{text}\n" if text else ""


def _chosen(points: Sequence[Problem]) -> Iterator[str]:
    """The values of the other axes that this run builds at."""
    axes = {", ".join(f"{name}={value}" for name, value in sorted(p.axes.items())) for p in points}
    if axes != {""}:
        yield f"This run builds at: {'; '.join(sorted(axes))}. Other values of the axes are other runs' work."


def _layout_notes(op: Op, points: Sequence[Problem]) -> Iterator[str]:
    """Sizes and strides that are not static, sizes that follow from others, padding."""
    present = list({t.name: t for t in op.present(points[-1])}.values())
    for symbol in op.runtime_dims:
        where = [f"`{t.name}.shape[{t.shape.index(symbol)}]`" for t in present if symbol in t.shape]
        yield (
            f"`{symbol}` is known at run time only: it is not in `dims` and differs from call to call. Read it as"
            f" {' or '.join(where)}, a 64-bit value; workspaces and tables of constants cannot depend on it."
        )
    for t in present:
        if t.pitched:
            yield (
                f"`{t.name}`: the stride of the first dimension is free at run time, a multiple of 16 bytes and at"
                " least one compact entry. Index it as any tensor, its layout carries the stride; what lies between"
                " two entries belongs to others. All other strides are static and row-major."
            )
        if t.padding is not None:
            yield f"Padding rows of `{t.name}` hold {t.padding}: such a row reads and writes no state."
    known = {*op.dims[points[0].dims], *op.runtime_dims, *op.axes, "tokens"}
    ends = {p.tokens: op.sizes(p) for p in (points[0], points[-1])}
    for symbol in (s for s in ends[points[-1].tokens] if s not in known):
        values = {f"{sizes[symbol]} at {tokens} tokens": sizes[symbol] for tokens, sizes in sorted(ends.items())}
        same = len(set(values.values())) == 1
        yield f"`dims` also holds `{symbol}`: {next(iter(values.values())) if same else ', '.join(values)}."


def _judging_notes(op: Op, point: Problem) -> Iterator[str]:
    """Outputs and states that another rule judges than the op's floor, and the rules beyond numbers."""
    for t in op.outputs(point):
        if t.rule is not None:
            yield f"`{t.name}` is judged otherwise: {_rule_text(t.rule)}"
    if type(op).hard_rules is not Op.hard_rules:
        said = inspect.cleandoc(type(op).hard_rules.__doc__ or "")
        if THERE in said:
            said = ""  # they stand with the formulas already
        yield (
            "Every call must also keep the rules stated with the formulas and definitions, whatever the tolerance"
            f" says. {said}".rstrip()
        )


def _rule_text(rule: Rule) -> str:
    if type(rule) is RelL2:
        later = f", {rule.drift:g} after more than one step" if rule.drift is not None else ""
        return f"relative L2 against the rounded reference at most {rule.floor:g}{later}, or 1.25 times the stock op's."
    if isinstance(rule, Exact):
        return "bit for bit the rounded reference."
    if isinstance(rule, Codes):
        return (
            f"at most {rule.unequal:.2%} of the 8-bit codes may differ from the rounded reference, none by more than"
            f" one step; relative L2 of the values at most {rule.floor:g}."
        )
    if isinstance(rule, MaxAbs):
        return f"largest absolute error to the rounded reference at most {rule.limit:g}, or 1.25 times the stock op's."
    if isinstance(rule, ByOp):
        return "by the op's own rules alone (below)."
    return f"{rule}. {' '.join((type(rule).__doc__ or '').split())}"


def _definitions(op: Op) -> list[str]:
    """What the modules say of themselves that an op's formulas live in."""
    found = [(m.__name__.rsplit(".", 1)[-1], inspect.cleandoc(m.__doc__ or "")) for m in op.shared]
    return [f"### Definitions: {name}\n\n{text}" for name, text in found if text]
