"""Prompts from the templates in `kgen.prompts`: strict about undefined names, hashed as a set and as rendered.

Templates are ours and are trusted; everything else (op data, messages, sources) enters as values, which are never
evaluated as templates, and foreign text only through the `quoted` filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import jinja2

from kgen.contract import Op
from kgen.gates.rates import MEASURED
from kgen.proposers.base import ProposalRequest
from kgen.proposers.feedback import feedback
from kgen.proposers.quoting import quoted
from kgen.records import Problem, canonical_json, sha256_bytes

READ_RATE = MEASURED["NVIDIA H200"].read  # bytes/s: the roofline of the reports
COST_TOKENS = (1, 8, 64)


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
        chosen = feedback(request.history, request.points)
        values = {
            "op": op_values(request),
            "archs": ", ".join(request.archs),
            "notes": self._notes(request),
            "index": index,
            "count": request.count,
            **chosen.values,
        }
        system = self.render("system.md", {"guide": self.pages["guide.md"]})
        return Prompt(chosen.template, system, self.render(chosen.template, values), self.sha256)

    def _notes(self, request: ProposalRequest) -> list[str]:
        """Notes on the op and on each architecture, where there are any."""
        names = [f"ops/{request.op.name}.md", *(f"arch/{arch}.md" for arch in request.archs)]
        return [self.pages[name] for name in names if name in self.pages]


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
        "scalars": [{"name": s.name, "dtype": s.dtype, "doc": s.doc} for s in op.scalars],
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


def _tensor(t: Any) -> dict[str, str]:
    only = f" (only where {t.only[0]} is {' or '.join(t.only[1])})" if t.only else ""
    shape = ", ".join(map(str, t.shape))
    return {"name": t.name, "dtype": t.dtype, "shape": shape, "role": str(t.role.value), "doc": t.doc + only}


def _axis(op: Op, name: str, choices: tuple[str, ...]) -> dict[str, str]:
    optional = ", ".join(t.name for t in op.tensors if t.only and t.only[0] == name)
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
