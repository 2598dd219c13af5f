"""The public names of the installed compiler package, read from its source: nothing of it is imported.

    names = Names(folder)              folder: that of the package, e.g. .../cutlass
    names.lookup("cute.copy")          signature and first words of its docstring, None where there is no such name
    names.nearest("cute.coppy")        real names that look like it

A name is public where no part of its path begins with an underscore; what a package takes over from its own modules
(`from .x import y`, also `*`) is a name of the package. Not covered: names that are made at run time.
"""

import ast
import difflib
import functools
from dataclasses import dataclass, field
from pathlib import Path

from kgen.gates.parsing import parse

ROOT = "cutlass"
GENERATED = "._mlir"  # bindings, large and for the package's own use
MAX_NEAREST = 6
MAX_DOC = 1_500  # characters
Node = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass
class Names:
    """Parses each file once. Not thread-safe in its parsing, which at worst is done twice."""

    folder: Path
    _exports: dict[str, dict[str, Node]] = field(default_factory=dict)

    def lookup(self, name: str) -> str | None:
        node = self._index.get(_full(name))
        return None if node is None else f"{_full(name)}\n{_signature(node)}\n{_doc(node)}".strip()

    def nearest(self, name: str) -> list[str]:
        """The same last word elsewhere first, then words that are spelt alike; in either, where the path fits best."""
        wanted, last = _full(name), name.rpartition(".")[2].lower()
        words = dict.fromkeys([last, *difflib.get_close_matches(last, self._words, 4, 0.75)])
        found = [sorted(self._words.get(word, ()), key=lambda n: _distance(n, wanted)) for word in words]
        first = [n for names in found for n in names[:2]]
        return list(dict.fromkeys([*first, *(n for names in found for n in names)]))[:MAX_NEAREST]

    @functools.cached_property
    def _index(self) -> dict[str, Node]:
        index: dict[str, Node] = {}
        for path in sorted(self.folder.rglob("*.py")):
            module = self._module(path)
            if any(part.startswith("_") for part in module.split(".")):
                continue
            for name, node in self._exported(module).items():
                if name.startswith("_"):
                    continue
                index[f"{module}.{name}"] = node
                for inner in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                        index[f"{module}.{name}.{inner.name}"] = inner
        return index

    @functools.cached_property
    def _words(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._index:
            found.setdefault(name.rpartition(".")[2].lower(), []).append(name)
        return found

    def _module(self, path: Path) -> str:
        parts = path.relative_to(self.folder).with_suffix("").parts
        return ".".join((ROOT, *(parts[:-1] if parts[-1] == "__init__" else parts)))

    def _file(self, module: str) -> Path | None:
        base = self.folder.joinpath(*module.split(".")[1:])
        return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if p.is_file()), None)

    def _exported(self, module: str) -> dict[str, Node]:
        """What the top level of a module binds: definitions, and names taken over from other modules of the package."""
        if module in self._exports:
            return self._exports[module]
        found = self._exports[module] = {}  # a module that is asked for again while it is read gives what it has so far
        path = self._file(module) if module.split(".")[0] == ROOT and GENERATED not in module else None
        try:
            body = parse(path.read_bytes()).body if path else []
        except (SyntaxError, ValueError, OSError):
            body = []
        package = module if path and path.name == "__init__.py" else module.rpartition(".")[0]
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {t.id: node for t in targets if isinstance(t, ast.Name)}
        for node in body:  # definitions first: modules take over from one another in circles
            if isinstance(node, ast.ImportFrom):
                self._take_over(node, package, found)
        return found

    def _take_over(self, node: ast.ImportFrom, package: str, found: dict[str, Node]) -> None:
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        given = self._exported(".".join([*above, *([node.module] if node.module else [])]))
        for alias in node.names:
            if alias.name == "*":
                found |= {name: inner for name, inner in given.items() if not name.startswith("_")}
            elif alias.name in given:
                found[alias.asname or alias.name] = given[alias.name]


def _distance(name: str, wanted: str) -> tuple[int, int]:
    """How badly a name fits a path: modules that differ, then its length."""
    return len(set(name.split(".")[:-1]) ^ set(wanted.split(".")[:-1])), len(name)


def _full(name: str) -> str:
    """From the root on, as sources import it: `cute` is `cutlass.cute`."""
    name = name.strip().removesuffix("()")
    return name if name == ROOT or name.startswith(f"{ROOT}.") else f"{ROOT}.{name}"


def _signature(node: Node) -> str:
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"def {node.name}({ast.unparse(node.args)}){returns}"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        made = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        public = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
        init = f"\n    {_signature(made)}" if made else ""
        return f"class {node.name}({bases}){init}\n    methods: {', '.join(public) or 'none of its own'}"
    return ast.unparse(node)[:300]


def _doc(node: Node) -> str:
    text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
    return (text or "")[:MAX_DOC]


@functools.cache
def installed() -> Names | None:
    """Of the installed compiler, None without one."""
    from kgen.serve.runtime import RuntimeMissing, find_runtime

    try:
        library = find_runtime().cute_library
    except RuntimeMissing:
        return None
    places = (folder / "dsl_packages" / ROOT for folder in Path(library).parents)
    found = next((place for place in places if place.is_dir()), None)
    return Names(found) if found else None
