"""What every op states about itself. One subclass an op, one file each, in a model pack."""

import abc
import difflib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import ClassVar

import torch

from kgen.contract import families
from kgen.contract.rules import Exact, RelL2, Rule
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.records import Problem, canonical_json, sha256_bytes, sha256_text

Values = dict[str, torch.Tensor | int | float]
StockFn = Callable[[Values], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Cost:
    """Fewest bytes moved through device memory and floating-point operations of one call."""

    bytes: int
    flops: int

    def floor_us(self, bytes_per_second: float) -> float:
        return self.bytes / bytes_per_second * 1e6


@dataclass(frozen=True)
class Family:
    """A kind of input values. `steps` > 1: that many consecutive calls on the same state."""

    name: str
    doc: str
    steps: int = 1


@dataclass(frozen=True)
class Pack:
    """A model's points: dims by name, token bins, padded counts. Data only."""

    name: str
    title: str
    bins: tuple[int, ...]
    padded: tuple[int, ...]  # counts between the bins that are measured too
    quick_bins: tuple[int, ...]  # the compile gate's quick tier
    served: tuple[str, ...]  # dims names that a promotion claims
    small: str  # dims name small enough to interpret
    # dims name -> the name whose sizes an op has there unless it lists its own: one build and one proof serve both
    same_as: Mapping[str, str] = field(default_factory=dict)


class Op(abc.ABC):
    """An op contract. Arguments of a kernel: `tensors` in order, then `scalars`, then workspaces, then the stream."""

    name: ClassVar[str]
    title: ClassVar[str]
    doc: ClassVar[str]
    pack: ClassVar[Pack]
    dims: ClassVar[Mapping[str, Mapping[str, int]]]
    tensors: ClassVar[tuple[TensorSpec, ...]]
    scalars: ClassVar[tuple[ScalarSpec, ...]] = ()
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # other axes, first value is the default
    families: ClassVar[tuple[Family, ...]]
    floor: ClassVar[float]  # relL2 against the rounded reference that is always allowed
    runtime_dims: ClassVar[tuple[str, ...]] = ()  # dim symbols that are not known when a kernel is built
    scenarios: ClassVar[tuple[Family, ...]] = ()  # input kinds that only the perf sweep adds (contexts, routings, ...)
    sweep: ClassVar[Mapping[str, str]] = {}  # axis -> values that a broad measurement covers, in words
    shared: ClassVar[tuple[ModuleType, ...]] = ()  # modules that the formulas live in, besides the op's own file
    chain: ClassVar[tuple[str, str] | None] = None  # (output, input) that a chained run joins
    chain_family: ClassVar[str] = "normal"  # the family whose magnitudes survive a long chain
    mutable_inputs: ClassVar[tuple[str, ...]] = ()  # inputs that the perf runner refills between replays

    @abc.abstractmethod
    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        """Inputs, weights, states and scalars by name, deterministic in (problem, family, seed, device type)."""

    @abc.abstractmethod
    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        """What a serving engine runs unfused: values -> outputs and new states.

        `compile` (torch.compile) is applied to the element-wise parts that an engine would have fused.
        """

    @abc.abstractmethod
    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        """Outputs and new states in float64; `rounded`: with the op's own roundings, as written."""

    @abc.abstractmethod
    def cost(self, problem: Problem) -> Cost:
        """At the inputs of the first family; where the values decide, `cost_of` is exact."""

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        """With what these inputs make a call read: routing, lengths, finished blocks."""
        return self.cost(problem)

    def refuses(self, problem: Problem) -> str:
        """One line when there is no such point (tokens that do not divide, ...), else ""."""
        return ""

    def names(self) -> tuple[str, ...]:
        """All dims names, those that another name's sizes serve included."""
        return (*self.dims, *(n for n, same in self.pack.same_as.items() if n not in self.dims and same in self.dims))

    @property
    def served(self) -> tuple[str, ...]:
        """Dims names that a promotion claims: the pack's, and its other ones for which this op has sizes of its own."""
        return (*self.pack.served, *(name for name in self.pack.same_as if name in self.dims))

    def own_name(self, dims: str) -> str:
        """The dims name that a point is filed under. Raises ValueError (one line) for unknown dims."""
        name = dims if dims in self.dims else self.pack.same_as.get(dims, dims)
        if name not in self.dims:
            raise ValueError(f"{self.name} has no dims {dims!r}; known: {', '.join(self.names())}")
        return name

    def problem(self, dims: str, tokens: int, arch: str, axes: Mapping[str, str] | None = None) -> Problem:
        """Raises ValueError (one line) for unknown dims, bins or axis values, and for a point that the op refuses."""
        own = self.own_name(dims)
        if tokens not in self.pack.bins:
            raise ValueError(f"{tokens} is not a token bin; bins: {', '.join(map(str, self.pack.bins))}")
        chosen = {name: values[0] for name, values in self.axes.items()}
        for name, value in (axes or {}).items():
            if value not in self.axes.get(name, ()):
                known = "; ".join(f"{k}: {', '.join(v)}" for k, v in self.axes.items()) or "no axes at all"
                raise ValueError(f"{self.name} has no {name}={value!r}; known: {known}")
            chosen[name] = value
        problem = Problem(self.name, own, tokens, arch, chosen)
        if reason := self.refuses(problem):
            raise ValueError(f"{problem.key}: {reason}")
        return problem

    def points(self, dims: str, tokens: int, arch: str) -> Iterator[Problem]:
        """Every combination of axis values that exists at these dims and tokens."""
        for values in itertools.product(*self.axes.values()):
            problem = Problem(self.name, self.own_name(dims), tokens, arch, dict(zip(self.axes, values, strict=True)))
            if not self.refuses(problem):
                yield problem

    def sizes(self, problem: Problem) -> dict[str, int]:
        """Dim symbols with their values, `tokens` included; an op adds those that follow from the others."""
        return {**self.dims[problem.dims], "tokens": problem.tokens}

    def rule(self, spec: TensorSpec) -> Rule:
        """What judges an output or a state."""
        found: Rule = spec.rule or (Exact() if spec.exact else RelL2(self.floor))
        return found

    def present(self, problem: Problem) -> tuple[TensorSpec, ...]:
        return tuple(t for t in self.tensors if t.present(problem.axes))

    def outputs(self, problem: Problem) -> tuple[TensorSpec, ...]:
        """Tensors that a call writes: outputs and states."""
        return tuple(t for t in self.present(problem) if t.role in (Role.OUT, Role.STATE))

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """Op-specific rules beyond exact tensors; one line per breach."""
        return []

    def bin_for(self, tokens: int) -> int:
        """The bin that serves a true token count. Raises ValueError above the largest bin."""
        for size in self.pack.bins:
            if tokens <= size:
                return size
        raise ValueError(f"{self.name}: {tokens} tokens exceed the largest bin {self.pack.bins[-1]}")

    def contract_sha256(self) -> str:
        """Hash of what the contract says: its data, this op's whole file and the shared modules."""
        signature: dict[str, object] = {
            "name": self.name,
            "dims": {k: dict(v) for k, v in self.dims.items()},
            "tensors": [repr(t) for t in self.tensors],
            "scalars": [repr(s) for s in self.scalars],
            "families": [f.name for f in self.families],
            "floor": self.floor,
            "source": sha256_text(inspect.getsource(sys.modules[type(self).__module__])),
            "shared": sha256_text(inspect.getsource(families)),
        }
        return sha256_bytes(canonical_json({**signature, **self._signature_more()}))

    def _signature_more(self) -> dict[str, object]:
        """Parts that not every contract has; what an op does not use does not touch its hash."""
        more: dict[str, object] = {
            "layouts": [[t.name, t.dtype, found] for t in self.tensors if (found := t.extra())],
            "runtime_dims": list(self.runtime_dims),
            "scenarios": [f.name for f in self.scenarios],
            "modules": [sha256_text(inspect.getsource(module)) for module in self.shared],
        }
        return {k: v for k, v in more.items() if v}


@dataclass(frozen=True)
class Registry:
    """Ops by name. `ops`: what one rank computes alone, the steps of a decode; `ranked`: what several compute together
    (kgen.contract.ranks.RankedOp), which no model of one rank has a seat for."""

    ops: Mapping[str, Op] = field(default_factory=dict)
    ranked: Mapping[str, Op] = field(default_factory=dict)

    @property
    def every(self) -> dict[str, Op]:
        """All that a kernel can be proposed for."""
        return {**self.ops, **self.ranked}

    def get(self, name: str) -> Op:
        """Raises ValueError (one line, with the names that look alike, or those of one rank) for an unknown op."""
        if (found := self.ops.get(name) or self.ranked.get(name)) is not None:
            return found
        every = sorted(self.every)
        near = [known for known in every if name in known.split("_")] or difflib.get_close_matches(name, every, n=3)
        more = f"; of several ranks {len(self.ranked)} more: kgen ops" if self.ranked else ""
        told = f"did you mean {', '.join(near)}?" if near else f"known ops: {', '.join(sorted(self.ops))}{more}"
        raise ValueError(f"unknown op {name!r}; {told}")
