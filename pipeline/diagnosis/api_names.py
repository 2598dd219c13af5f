"""What the installed compiler package says of a name, and the real names that look like one: read, not imported.

    names = Names(folder)                   folder: that of the package, e.g. .../cutlass
    names.lookup("cute.copy")               signature and first words of its docstring, None where there is no such name
    names.nearest("cute.coppy")             real names that look like it, wherever they are defined
    names.nearest_given("cute.coppy")       those of its own module and of the packages, as sources import them

A name is public where no part of its path begins with an underscore; what a package takes over from its own modules
(`from .x import y`, also `*`) is a name of the package. Not covered: names that are made at run time.
"""

import ast
import difflib
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kgen.diagnosis.api_modules import ROOT, Node, Package

MAX_NEAREST = 6
MAX_DOC = 1_500  # characters
ALIKE = 0.7  # of difflib
Words = Mapping[str, list[str]]  # last word of a name, in small letters -> the names


class Names:
    """Thread-safe: at worst a module is read twice."""

    def __init__(self, folder: Path) -> None:
        self.package = Package(folder)

    def lookup(self, name: str) -> str | None:
        wanted = _full(name)
        node = self._node(wanted) if not any(p.startswith("_") for p in wanted.split(".")) else None
        return None if node is None else f"{wanted}\n{_signature(node)}\n{_doc(node)}".strip()

    def nearest(self, name: str) -> list[str]:
        """The same last word elsewhere first, then words that are spelt alike; in either, where the path fits best."""
        return _nearest(_full(name), self._defined)

    def nearest_given(self, name: str) -> list[str]:
        """In the same order. Reads the packages' own files only, not all of the package's modules."""
        wanted = _full(name)
        module = wanted.rpartition(".")[0]
        if module in self.package.packages or not self.package.has_module(module):
            return _nearest(wanted, self._given)
        return _nearest(wanted, _by_word([*self._names_of(module), *(n for ns in self._given.values() for n in ns)]))

    def _node(self, wanted: str) -> Node | None:
        module, _, word = wanted.rpartition(".")
        if place := self.package.definition(module, word):
            return self.package.node(*place)
        above, _, owner = module.rpartition(".")  # a method, of a class
        place = self.package.definition(above, owner)
        node = self.package.node(*place) if place else None
        methods = node.body if isinstance(node, ast.ClassDef) else []
        return next((n for n in reversed(methods) if isinstance(n, ast.FunctionDef) and n.name == word), None)

    @functools.cached_property
    def _defined(self) -> Words:
        """Every public name that is defined in the package, and every public method."""
        return _by_word(name for module in self.package.modules for name in self._all_of(module))

    def _all_of(self, module: str) -> Iterator[str]:
        for word in sorted(w for w in self.package.names(module) if not w.startswith("_")):
            if place := self.package.definition(module, word):
                yield f"{module}.{word}"
                yield from (f"{module}.{word}.{m}" for m in self.package.read(place[0]).defined[place[1]])

    @functools.cached_property
    def _given(self) -> Words:
        return _by_word(name for module in self.package.packages for name in self._names_of(module))

    def _names_of(self, module: str) -> Iterator[str]:
        return (f"{module}.{word}" for word in sorted(self.package.names(module)) if not word.startswith("_"))


def _by_word(names: Iterable[str]) -> Words:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[name.rpartition(".")[2].lower()].append(name)
    return found


def _nearest(wanted: str, words: Words) -> list[str]:
    """The best two of each word that is alike, then the others."""
    last = wanted.rpartition(".")[2].lower()
    alike = dict.fromkeys([last, *difflib.get_close_matches(last, words, 4, ALIKE)])
    found = [sorted(words.get(word, ()), key=lambda n: _distance(n, wanted)) for word in alike]
    first = [n for names in found for n in names[:2]]
    return list(dict.fromkeys([*first, *(n for names in found for n in names)]))[:MAX_NEAREST]


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
