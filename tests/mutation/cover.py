"""Which tests execute which lines of the mutated modules, and how long each takes; from one instrumented run.

    cover(files, texts, path)     runs the files that have changed since `path` was written, and writes it
    Cover.load(path)

Instrumented is only the code under mutation: a probe before each statement. What a fixture of module or session scope
executes counts for every test that asks for it. Lines that run at import belong to nobody. Tests that fail, are
skipped or are too slow are left out.
"""

import ast
import builtins
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mutation import forks
from mutation.areas import SLOWEST
from mutation.session import Session

PROBE = "_mutation_probe"
QUICK = 0.2  # seconds
Line = tuple[str, int]


@dataclass(frozen=True)
class Cover:
    """`lines`: (module, line) -> node ids; `seconds` of CPU that each test takes."""

    lines: Mapping[Line, set[str]]
    seconds: Mapping[str, float]

    def of(self, lines: Iterable[Line]) -> set[str]:
        return {name for line in lines for name in self.lines.get(line, ())}

    def idle(self) -> set[str]:
        """The tests that execute no line of any module."""
        return set(self.seconds).difference(*self.lines.values())

    def ordered(self, names: Iterable[str], budget: float) -> tuple[str, ...]:
        """Cheapest first, quick ones before slow ones and those of one file together, until the budget is spent."""
        kept: list[str] = []
        for name in sorted(names, key=lambda n: (self.seconds[n], n)):
            budget -= self.seconds[name]
            if budget < 0:
                break
            kept.append(name)
        files = list(dict.fromkeys(map(file_of, kept)))
        return tuple(sorted(kept, key=lambda n: (self.seconds[n] > QUICK, files.index(file_of(n)), self.seconds[n])))

    @classmethod
    def load(cls, path: Path) -> "Cover":
        lines: dict[Line, set[str]] = defaultdict(set)
        seconds: dict[str, float] = {}
        for part in json.loads(path.read_text()).values():
            for name, (cost, reached) in part["tests"].items():
                seconds[name] = cost
                for module, numbers in reached.items():
                    for number in numbers:
                        lines[module, number].add(name)
        return cls(lines, seconds)


def file_of(name: str) -> str:
    return name.split("::", 1)[0]


class _Owners:
    """Notes lines for the test that runs, or for the wide fixture that is being made."""

    def __init__(self) -> None:
        self.seen: dict[str, set[Line]] = defaultdict(set)
        self.now = [""]

    def probe(self, module: str, line: int) -> None:
        self.seen[self.now[-1]].add((module, line))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        self.now.append(_fixture(fixturedef))
        try:
            return (yield)
        finally:
            self.now.pop()

    def of(self, item: Any) -> set[Line]:
        shared = {_fixture(d) for ds in item._fixtureinfo.name2fixturedefs.values() for d in ds}
        return self.seen[item.nodeid].union(*(self.seen[name] for name in shared))


def _fixture(definition: Any) -> str:
    return f"fixture {definition.baseid} {definition.argname}"


def cover(files: Sequence[Path], texts: Mapping[str, str], path: Path, say: Callable[[str], None]) -> None:
    """Runs every test of the files that changed once, in this process; writes after each file."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    hashes = {f"tests/{f.name}": hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    known = {name: part for name, part in known.items() if hashes.get(name) == part["sha256"]}
    changed = [f for f in files if f"tests/{f.name}" not in known]
    if changed:
        session, owners = Session(changed), _Owners()
        setattr(builtins, PROBE, owners.probe)
        _instrument(texts)
        session.config.pluginmanager.register(owners)
        items = list(session.items.values())
        for item, after in zip(items, [*items[1:], None], strict=True):
            name = file_of(item.nodeid)
            part = known.setdefault(name, {"sha256": hashes[name], "tests": {}})
            owners.now = [item.nodeid]
            outcome = session.run(item, after)
            if outcome.failed or outcome.skipped or outcome.seconds > SLOWEST:
                why = "failed" if outcome.failed else "skipped" if outcome.skipped else f"{outcome.seconds:.1f} s"
                say(f"left out: {item.nodeid} ({why})")
                continue
            reached: dict[str, list[int]] = defaultdict(list)
            for module, line in sorted(owners.of(item)):
                reached[module].append(line)
            part["tests"][item.nodeid] = round(outcome.seconds, 3), reached
            if after is None or file_of(after.nodeid) != name:
                path.write_text(json.dumps(known))
    path.write_text(json.dumps(known))


def _instrument(texts: Mapping[str, str]) -> None:
    known = forks.functions(list(texts))
    for module, text in texts.items():
        tree = ast.fix_missing_locations(_Probes(module).visit(ast.parse(text)))
        for owner, name in list(known):
            if owner == module and "<locals>" not in name and "<lambda>" not in name:
                forks.put(known, module, name, tree)


class _Probes(ast.NodeTransformer):
    """A call before each statement of a function."""

    def __init__(self, module: str) -> None:
        self.module, self.inside = module, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.inside += 1
        self.generic_visit(node)
        self.inside -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for slot in ("body", "orelse", "finalbody"):
            held = getattr(node, slot, None)
            if self.inside and isinstance(held, list) and held and isinstance(held[0], ast.stmt):
                setattr(node, slot, [new for statement in held for new in (self._probe(statement), statement)])
        return node

    def _probe(self, statement: ast.stmt) -> ast.stmt:
        arguments: list[ast.expr] = [ast.Constant(self.module), ast.Constant(statement.lineno)]
        return ast.copy_location(ast.Expr(ast.Call(ast.Name(PROBE, ast.Load()), arguments, [])), statement)
