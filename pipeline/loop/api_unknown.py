"""Names of the compiler package that a source uses and that do not exist, found before anything is compiled.

    for name in unknown_names(source, Names(folder)): print(name)

Only what certainly does not exist is reported: an attribute of a module whose file, with the files that it takes names
over from by `*`, is read and binds it nowhere, makes no names at run time, and has no module of that name. Names that
the source binds itself, anything within `try`, and names that it asks `hasattr` or `getattr` for are left out; classes,
instances and results of calls are never looked into. Code that no point reaches is read as well. A module is parsed
when a source first names it.
"""

import ast
import difflib
import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kgen.gates.parsing import UNPARSABLE, parse
from kgen.loop.api_names import GENERATED, MAX_NEAREST, ROOT, Names

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar


@dataclass(frozen=True)
class Unknown:
    line: int
    name: str  # from the package on: cutlass.cute.coppy
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        module, _, word = self.name.rpartition(".")
        near = f"; nearest real names: {', '.join(self.nearest)}" if self.nearest else ""
        return f"AttributeError: module {module!r} has no attribute {word!r} (candidate.py:{self.line}){near}"


@dataclass(frozen=True)
class Module:
    """`bound`: name -> the (module, name) that it is taken over from, None for anything else. `public`: what `*` gives
    where `__all__` is a literal. `open`: it may bind other names too; `lazy`: it answers for names that it does not
    bind. `paths`: its submodules may lie elsewhere too."""

    bound: dict[str, tuple[str, str] | None]
    stars: tuple[str, ...]
    public: frozenset[str] | None
    open: bool
    lazy: bool
    paths: bool


def unknown_names(source: str, names: Names) -> tuple[Unknown, ...]:
    """In the order of the text, each name once. A source that Python cannot parse has none."""
    try:
        tree = parse(source)
    except UNPARSABLE:
        return ()
    package = _package(names.folder)
    found: dict[str, int] = {}
    for line, name in sorted(_missing(tree, package)):
        found.setdefault(name, line)
    return tuple(Unknown(line, name, package.nearest(name)) for name, line in found.items())


def _missing(tree: ast.Module, package: "Package") -> Iterator[tuple[int, str]]:
    nodes = list(_outside_try(tree))
    aliases: dict[str, set[str]] = defaultdict(set)  # name -> modules that the source imports under it
    own = _own_names(tree)
    asked = {word for node in ast.walk(tree) if isinstance(node, ast.Call) for word in _asked_for(node)}
    given = set()  # modules that the source imports itself are attributes of those above them
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                given.add(alias.name)
                aliases[alias.asname or alias.name.split(".")[0]].add(alias.name if alias.asname else ROOT)
                if not alias.asname and alias.name.split(".")[0] != ROOT:
                    own.add(alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = package.follow(node.module or "", alias.name) if not node.level else None
                aliases[alias.asname or alias.name].add(module or "")
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and package.has_module(node.module or ""):
            module = node.module or ""
            for alias in node.names:
                if not package.may_have(module, alias.name) and not package.read(module).paths:
                    yield node.lineno, f"{module}.{alias.name}"
        chain = _chain(node)
        if not chain or chain[0] in own or len(aliases.get(chain[0], ())) != 1:
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
                    yield getattr(node, "lineno", 0), f"{here}.{word}"
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


def _chain(node: ast.AST) -> list[str]:
    """["cute", "arch", "lane_idx"] of `cute.arch.lane_idx` that is read, else nothing."""
    words: list[str] = []
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
        return words
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        words.append(inner.attr)
        inner = inner.value
    return [*reversed([*words, inner.id])] if isinstance(inner, ast.Name) else []


def _own_names(tree: ast.AST) -> set[str]:
    """Everything that the source binds other than by an import, in any scope."""
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own.add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, Named) and node.name:
            own.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            own.add(node.rest)
    return own


def _asked_for(node: ast.Call) -> list[str]:
    """The words that `hasattr` and `getattr` are called with."""
    if not (isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")):
        return []
    return [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]


class Package:
    """The modules of the package, each parsed when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, Module] = {}

    def has_module(self, module: str) -> bool:
        return self._file(module) is not None

    def may_have(self, module: str, word: str) -> bool:
        """False only where the module certainly has no such attribute."""
        if word == "*" or word.startswith("__") or self._lies(f"{module}.{word}"):
            return True
        if self.read(module).lazy:
            return True
        return any(m.open or word in m.bound or word in (m.public or ()) for m in self._closure(module))

    def follow(self, module: str, word: str, depth: int = 8) -> str | None:
        """The module that `module.word` is, None where it is none, or where that cannot be told."""
        if not depth or not self.has_module(module):
            return None
        for read in self._closure(module):
            if word in read.bound:
                taken = read.bound[word]
                if taken == (module, word):  # from . import arch
                    return f"{module}.{word}" if self.has_module(f"{module}.{word}") else None
                return self.follow(*taken, depth - 1) if taken and taken[1] else taken[0] if taken else None
        below = f"{module}.{word}"
        return below if self.has_module(below) and not any(m.open for m in self._closure(module)) else None

    def nearest(self, name: str) -> tuple[str, ...]:
        """Names of the same module that are spelt alike, and of the packages' own files."""
        module, _, word = name.rpartition(".")
        places = [module, *(m for m in self._packages if m != module)]
        found = [f"{place}.{w}" for place in places if word in self._words(place) for w in [word]]
        for place in places:
            found += [f"{place}.{w}" for w in difflib.get_close_matches(word, self._words(place), 3, 0.7)]
        return tuple(dict.fromkeys(found))[:MAX_NEAREST]

    def read(self, module: str) -> Module:
        if module not in self._read:
            self._read[module] = self._parsed(module)
        return self._read[module]

    @functools.cached_property
    def _packages(self) -> list[str]:
        """The public ones, short names first."""
        folders = (path.parent.relative_to(self._folder).parts for path in self._folder.rglob("__init__.py"))
        public = [".".join((ROOT, *parts)) for parts in folders if not any(p.startswith("_") for p in parts)]
        return sorted(public, key=lambda m: (m.count("."), m))

    def _words(self, module: str) -> list[str]:
        """What the module binds itself, and what it takes over by * where the other says what that is."""
        words = set().union(*(m.public if i and m.public else m.bound for i, m in enumerate(self._closure(module))))
        return sorted(word for word in words if not word.startswith("_"))

    def _closure(self, module: str) -> list[Module]:
        """The module, and those that it takes all names over from. Those with a literal `__all__` give no others."""
        found: dict[str, Module] = {}
        todo = [module]
        while todo:
            name = todo.pop(0)
            if name in found:
                continue
            read = self.read(name)
            if name != module and read.public is not None:
                kept = {word: read.bound.get(word) for word in read.public}
                found[name] = replace(read, bound=kept, stars=(), open=False)
                continue
            found[name] = read
            todo += read.stars
        return list(found.values())

    def _lies(self, module: str) -> bool:
        base = self._folder.joinpath(*module.split(".")[1:])
        return base.is_dir() or any(base.parent.glob(f"{base.name}.*"))  # also a module in machine code

    def _file(self, module: str) -> Path | None:
        parts = module.split(".")
        if parts[0] != ROOT or not all(part.isidentifier() for part in parts):
            return None
        base = self._folder.joinpath(*parts[1:])
        return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if p.is_file()), None)

    def _parsed(self, module: str) -> Module:
        path = None if GENERATED in module else self._file(module)
        try:
            tree = parse(path.read_bytes()) if path else None
        except (SyntaxError, ValueError, OSError):
            tree = None
        if tree is None or path is None:
            return Module({}, (), None, True, True, True)
        home = module if path.name == "__init__.py" else module.rpartition(".")[0]
        bound: dict[str, tuple[str, str] | None] = {}
        stars: list[str] = []
        for node in _top(tree):
            for name, taken in _bindings(node, home):
                if name == "*":
                    stars.append(taken[0] if taken else "")
                else:
                    bound[name] = taken if bound.get(name, taken) == taken else None
        nodes = list(ast.walk(tree))
        bound |= {name: None for node in nodes if isinstance(node, ast.Global) for name in node.names}
        looped, made = _run_time(tree, nodes)
        bound |= dict.fromkeys(looped)
        lazy, public = "__getattr__" in bound, _all(tree)
        made = made or (lazy and public is None and "__all__" in bound)
        paths = any(isinstance(n, ast.Name) and n.id == "__path__" for n in nodes)
        return Module(bound, tuple(stars), public, made, lazy, paths)


@functools.cache
def _package(folder: Path) -> Package:
    return Package(folder)


def _top(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs in the module's own scope."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Scope):
            yield from _top(child)


def _bindings(node: ast.AST, home: str) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """What one node binds: (name, (module, name there)), the second name empty for a module itself."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, None
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, None
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield (
                alias.asname or alias.name.split(".")[0],
                (alias.name if alias.asname else alias.name.split(".")[0], ""),
            )
    elif isinstance(node, ast.ImportFrom):
        parts = home.split(".")
        above = parts[: len(parts) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield alias.asname or alias.name, (module, "" if alias.name == "*" else alias.name)


def _run_time(tree: ast.Module, nodes: list[ast.AST]) -> tuple[set[str], bool]:
    """(names that loops over literals enter into `globals()`, whether other names may be made at run time)."""
    literals = {
        node.targets[0].id: _words_of(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    harmless: set[int] = set()  # ids of the calls of globals() that make no name that is not known
    looped: set[str] = set()
    for loop in tree.body:
        if not (isinstance(loop, ast.For) and isinstance(loop.target, ast.Name)):
            continue
        over = literals.get(loop.iter.id) if isinstance(loop.iter, ast.Name) else _words_of(loop.iter)
        for node in ast.walk(loop):
            key = node.slice if isinstance(node, ast.Subscript) else None
            if over and isinstance(node, ast.Subscript) and isinstance(key, ast.Name) and key.id == loop.target.id:
                harmless.add(id(node.value))
                looped |= over
    harmless |= {id(n.value) for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)}
    harmless |= {id(c) for n in nodes if isinstance(n, ast.Compare) for c in n.comparators}
    return looped, any(id(node) not in harmless and _makes(node) for node in nodes)


def _makes(node: ast.AST) -> bool:
    """Whether this may bind a name of a module: globals(), exec, setattr on what is no plain name, its own entry."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "modules":
        return isinstance(node.slice, ast.Name) and node.slice.id == "__name__"
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    if node.func.id == "setattr":
        return not (node.args and isinstance(node.args[0], ast.Name))
    return node.func.id in ("globals", "exec") or (node.func.id in ("vars", "locals") and not node.args)


def _words_of(node: ast.expr) -> set[str]:
    """Of a literal tuple or list of texts, else nothing."""
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return set()
    return set(found) if isinstance(found, tuple | list) and all(isinstance(word, str) for word in found) else set()


def _all(tree: ast.Module) -> frozenset[str] | None:
    """`__all__` where it is bound once, to a literal."""
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "__all__"]
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(uses) == 1 and node.targets == uses:
            try:
                return frozenset(map(str, ast.literal_eval(node.value)))
            except (ValueError, TypeError):
                return None
    return None
