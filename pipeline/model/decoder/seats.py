"""Binding of ops to their places in a model: one seat a use, at the step's token bin, and a list of what was bound."""

from collections.abc import Mapping

from kgen.contract.op import Op, Registry
from kgen.model.bind import Binder, OpCall
from kgen.model.decoder.config import Config, sizes
from kgen.records import Problem


class Seats:
    """All seats of one step. `problems` has one entry for each call that a step makes."""

    def __init__(self, config: Config, registry: Registry, rows: int, q: int, arch: str, binder: Binder) -> None:
        self.config, self.registry, self.rows, self.q = config, registry, rows, q
        self._arch, self._binder = arch, binder
        self.problems: list[Problem] = []

    def op(self, name: str) -> Op:
        return self.registry.get(name)

    def sizes(self, name: str) -> Mapping[str, int]:
        return sizes(self.op(name), self.config.dims)

    def bind(self, name: str, seat: str, axes: Mapping[str, str] | None = None) -> OpCall:
        """The callable in one seat. Compile-time choices: the configuration's for this op, then `axes`."""
        op = self.op(name)
        chosen = {**self.config.axes.get(name, {}), **(axes or {})}
        problem = op.problem(self.config.dims, self.rows, self._arch, chosen)
        self.problems.append(problem)
        return self._binder.bind(op, problem, seat)
