"""Names of the compiler package that a source uses and that do not exist, found before anything is compiled.

    for name in unknown_names(source, Names(folder)): print(name)

Only what certainly does not exist is reported: an attribute of a module whose file, with the files that it takes names
over from by `*`, is read and binds it nowhere, makes no names at run time, and has no module of that name. Names that
the source binds itself, anything within `try`, and names that it asks `hasattr` or `getattr` for are left out; classes,
instances and results of calls are never looked into. Code that no point reaches is read as well. A module is parsed
when a source first names it.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kgen.diagnosis.api_modules import ROOT, Package
from kgen.diagnosis.api_names import Names
from kgen.gates.parsing import UNPARSABLE, Looked, shared_look

NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


@dataclass(frozen=True)
class Unknown:
    line: int
    name: str  # from the package on: cutlass.cute.coppy
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        module, _, word = self.name.rpartition(".")
        near = f"; nearest real names: {', '.join(self.nearest)}" if self.nearest else ""
        return f"AttributeError: module {module!r} has no attribute {word!r} (candidate.py:{self.line}){near}"


def unknown_names(source: str, names: Names) -> tuple[Unknown, ...]:
    """In the order of the text, each name once. A source that Python cannot parse has none."""
    try:
        seen = shared_look(source)
    except UNPARSABLE:
        return ()
    found: dict[str, int] = {}
    for line, name in sorted(_missing(seen, names.package)):
        found.setdefault(name, line)
    return tuple(Unknown(line, name, tuple(names.nearest_given(name))) for name, line in found.items())


def _missing(seen: Looked, package: Package) -> Iterator[tuple[int, str]]:
    kinds: dict[type[ast.AST], list[Any]] = defaultdict(list, seen.kinds)
    aliases: dict[str, set[str]] = defaultdict(set)  # name -> modules that the source imports under it
    own = _own_names(kinds)
    asked = {word for node in kinds[ast.Call] for word in _asked_for(node)}
    given = set()  # modules that the source imports itself are attributes of those above them
    for node in kinds[ast.Import] + kinds[ast.ImportFrom]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                given.add(alias.name)
                aliases[alias.asname or alias.name.split(".")[0]].add(alias.name if alias.asname else ROOT)
                if not alias.asname and alias.name.split(".")[0] != ROOT:
                    own.add(alias.name.split(".")[0])
        else:
            for alias in node.names:
                module = package.follow(node.module or "", alias.name) if not node.level else None
                aliases[alias.asname or alias.name].add(module or "")
    chains: dict[tuple[str, ...], int] = {}  # -> the first line
    outside = (
        _outside_try(seen.tree)
        if kinds[ast.Try] or kinds[ast.TryStar]
        else kinds[ast.ImportFrom] + kinds[ast.Attribute]
    )
    for node in outside:
        if isinstance(node, ast.ImportFrom) and not node.level and package.has_module(node.module or ""):
            module = node.module or ""
            for alias in node.names:
                if not package.may_have(module, alias.name) and not package.read(module).paths:
                    yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and (chain := _chain(node)):
            chains[chain] = min(node.lineno, chains.get(chain, node.lineno))
    for chain, line in chains.items():
        if chain[0] in own or len(aliases.get(chain[0], ())) != 1:
            continue
        here = next(iter(aliases[chain[0]]))
        for word in chain[1:]:
            if f"{here}.{word}" in given:
                here = f"{here}.{word}"
                continue
            if not package.has_module(here):
                break
            if not package.may_have(here, word):
                if word not in asked:
                    yield line, f"{here}.{word}"
                break
            here = package.follow(here, word) or ""


def _outside_try(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below a `try`; of a chain of attributes only its whole."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Try | ast.TryStar):
            continue
        yield child
        if not _chain(child):
            yield from _outside_try(child)


def _chain(node: ast.AST) -> tuple[str, ...]:
    """("cute", "arch", "lane_idx") of `cute.arch.lane_idx` that is read, else nothing."""
    words: list[str] = []
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
        return ()
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        words.append(inner.attr)
        inner = inner.value
    return (inner.id, *reversed(words)) if isinstance(inner, ast.Name) else ()


def _own_names(kinds: Mapping[type[ast.AST], Iterable[Any]]) -> set[str]:
    """Everything that the source binds other than by an import, in any scope. `kinds`: all its nodes."""
    own = {node.id for node in kinds[ast.Name] if node.ctx.__class__ is not ast.Load}
    own |= {node.arg for node in kinds[ast.arg]}
    own |= {node.name for kind in NAMED for node in kinds[kind] if node.name}
    return own | {node.rest for node in kinds[ast.MatchMapping] if node.rest}


def _asked_for(node: ast.Call) -> list[str]:
    """The words that `hasattr` and `getattr` are called with."""
    if not (isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")):
        return []
    return [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
