"""The compiler package read from its source: what each module binds, takes over and defines. Nothing is imported.

    package = Package(folder)                        folder: that of the package, e.g. .../cutlass
    package.may_have("cutlass.cute", "coppy")        False only where the module certainly has no such attribute
    package.definition("cutlass.cute", "copy")       the module and name where it is defined

A module is parsed when it is first asked for, and its tree is not kept. Classes, instances and results of calls are not
looked into. Not covered: names of a module in machine code.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from kgen.gates.parsing import UNPARSABLE, every, parse

ROOT = "cutlass"
GENERATED = "._mlir"  # bindings, large and for the package's own use
DEPTH = 8  # modules that a name is handed through
# Without any of these words a module binds nothing at run time but what its own scope shows.
TELLING = re.compile(
    rb"\b(?:globals|exec|setattr|vars|locals)\s*\(|\bmodules\s*\[|\b__path__\b|^\s*global\b", re.MULTILINE
)
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
Node = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Module:
    """`bound`: name -> the (module, name) that it is taken over from, None for anything else. `public`: what `*` gives
    where `__all__` is a literal. `open`: it may bind other names too; `lazy`: it answers for names that it does not
    bind. `paths`: its submodules may lie elsewhere too. `defined`: names of its own functions, classes and values, with
    the public methods of a class."""

    name: str
    bound: Mapping[str, tuple[str, str] | None]
    stars: tuple[str, ...]
    public: frozenset[str] | None
    open: bool
    lazy: bool
    paths: bool
    defined: Mapping[str, tuple[str, ...]]


class Package:
    """The modules of the package, each parsed when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, Module] = {}
        self._closures: dict[str, list[Module]] = {}
        self._files: dict[str, Path | None] = {}

    def has_module(self, module: str) -> bool:
        return self._file(module) is not None

    def may_have(self, module: str, word: str) -> bool:
        """False only where the module certainly has no such attribute."""
        if word == "*" or word.startswith("__") or self.read(module).lazy:
            return True
        if any(m.open or word in m.bound or word in (m.public or ()) for m in self._closure(module)):
            return True
        return self._lies(f"{module}.{word}")

    def follow(self, module: str, word: str, depth: int = DEPTH) -> str | None:
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

    def definition(self, module: str, word: str, depth: int = DEPTH) -> tuple[str, str] | None:
        """The module and name where `module.word` is defined, None where that is not in the package."""
        for read in self._closure(module) if depth and self.has_module(module) else ():
            if word not in read.bound:
                continue
            if read.name != module and read.public is not None:
                return self.definition(read.name, word, depth - 1)
            if taken := read.bound[word]:
                return self.definition(*taken, depth - 1) if taken[1] else None
            return (read.name, word) if word in read.defined else None
        return None

    def node(self, module: str, word: str) -> Node | None:
        """The last definition of the name in this module's own scope; its file is parsed for this."""
        tree = _tree(self._text(module))
        found = [n for n in _top(tree) if isinstance(n, Node) and word in _defined(n)] if tree else []
        return found[-1] if found else None

    def names(self, module: str) -> set[str]:
        """What the module binds itself, and what it takes over by * where the other says what that is."""
        first, *others = self._closure(module)
        return set(first.bound).union(*(m.public or m.bound for m in others))

    @functools.cached_property
    def modules(self) -> tuple[str, ...]:
        """All that lie in the folder and are public."""
        parts = [p.relative_to(self._folder).with_suffix("").parts for p in sorted(self._folder.rglob("*.py"))]
        dotted = (".".join((ROOT, *(p[:-1] if p[-1] == "__init__" else p))) for p in parts)
        return tuple(dict.fromkeys(m for m in dotted if not any(w.startswith("_") for w in m.split("."))))

    @functools.cached_property
    def packages(self) -> tuple[str, ...]:
        """The public modules that others lie in, short names first."""
        found = [m for m in self.modules if self._file(m) == self._base(m) / "__init__.py"]
        return tuple(sorted(found, key=lambda m: (m.count("."), m)))

    def read(self, module: str) -> Module:
        if module not in self._read:
            self._read[module] = self._parsed(module)
        return self._read[module]

    def _closure(self, module: str) -> list[Module]:
        """The module, and those that it takes all names over from. Those with a literal `__all__` give no others."""
        if module not in self._closures:
            self._closures[module] = self._closed(module)
        return self._closures[module]

    def _closed(self, module: str) -> list[Module]:
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
        base = self._base(module)
        return base.is_dir() or any(base.parent.glob(f"{base.name}.*"))  # also a module in machine code

    def _base(self, module: str) -> Path:
        return self._folder.joinpath(*module.split(".")[1:])

    def _file(self, module: str) -> Path | None:
        if module not in self._files:
            sound = module.split(".")[0] == ROOT and all(part.isidentifier() for part in module.split("."))
            places = (self._base(module) / "__init__.py", self._base(module).with_suffix(".py")) if sound else ()
            self._files[module] = next((p for p in places if p.is_file()), None)
        return self._files[module]

    def _text(self, module: str) -> bytes:
        path = None if GENERATED in module else self._file(module)
        try:
            return path.read_bytes() if path else b"("
        except OSError:
            return b"("  # as one that cannot be parsed

    def _parsed(self, module: str) -> Module:
        text, path = self._text(module), self._file(module)
        tree = _tree(text)
        if tree is None or path is None:
            return Module(module, {}, (), None, True, True, True, {})
        home = module if path.name == "__init__.py" else module.rpartition(".")[0]
        bound: dict[str, tuple[str, str] | None] = {}
        defined: dict[str, tuple[str, ...]] = {}
        stars: list[str] = []
        for node in _top(tree, b":=" in text):
            defined |= _defined(node)
            for name, taken in _bindings(node, home):
                if name == "*":
                    stars.append(taken[0] if taken else "")
                else:
                    bound[name] = taken if bound.get(name, taken) == taken else None
        unseen = [node for check in tree.body if _checked(check) for node in _top(ast.Module(check.body, []))]
        hidden: dict[str, tuple[str, str] | None] = {
            name: None for node in unseen for name, _ in _bindings(node, home) if name != "*"
        }
        bound = hidden | bound
        nodes = every(tree) if TELLING.search(text) else []
        bound |= {name: None for node in nodes if isinstance(node, ast.Global) for name in node.names}
        looped, made = _run_time(tree, nodes)
        bound |= dict.fromkeys(looped)
        lazy, public = "__getattr__" in bound, _all(tree, text) if "__all__" in bound else None
        made = made or (lazy and public is None and "__all__" in bound)
        paths = any(isinstance(n, ast.Name) and n.id == "__path__" for n in nodes)
        return Module(module, bound, tuple(stars), public, made, lazy, paths, defined)


def _tree(text: bytes) -> ast.Module | None:
    try:
        return parse(text)
    except UNPARSABLE:
        return None


def _defined(node: ast.AST) -> dict[str, tuple[str, ...]]:
    """The names that one node defines, with the public methods of a class."""
    if isinstance(node, ast.FunctionDef):
        return {node.name: ()}
    if isinstance(node, ast.ClassDef):
        return {node.name: tuple(n.name for n in node.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_")}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id: () for target in targets if isinstance(target, ast.Name)}


def _top(node: ast.AST, deep: bool = False) -> Iterator[ast.AST]:
    """Every statement that runs in the module's own scope, and what they bind; not what only a type checker reads.

    `deep`: expressions too, which bind names by := only.
    """
    for child in node.orelse if _checked(node) else ast.iter_child_nodes(node):
        if deep or not isinstance(child, ast.expr) or isinstance(getattr(child, "ctx", None), ast.Store):
            yield child
            if not isinstance(child, Scope):
                yield from _top(child, deep)


def _checked(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether this is `if TYPE_CHECKING`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


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
        for node in every(loop):
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


def _all(tree: ast.Module, text: bytes) -> frozenset[str] | None:
    """`__all__` where it is bound once, to a literal."""
    if text.count(b"__all__") > 1 and sum(isinstance(n, ast.Name) and n.id == "__all__" for n in every(tree)) > 1:
        return None
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id == "__all__":
            try:
                return frozenset(map(str, ast.literal_eval(node.value)))
            except (ValueError, TypeError):
                return None
    return None
