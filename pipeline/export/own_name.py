"""Imports the copy of kgen in this folder under the name of the kernel that carries it.

    install(__name__)        then `<that name>.kgen.serve.load` is this folder's kgen/serve/load.py

So a kernel stands beside an installed kgen and beside other versions of itself. The files are not changed on disk, for
contracts are hashes of their text: `kgen...` in their import statements, and where they look for their own data, is
read as `<that name>.kgen...`. No bytecode is kept. Standard library only: a published kernel carries this file.
"""

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

LOOKUPS = ("files", "find_spec")  # importlib.resources.files("kgen.serve"), importlib.util.find_spec("kgen...")


def install(name: str) -> None:
    """From now on modules below `name`.kgen are found in that package's folder. Installing twice changes nothing."""
    if not any(isinstance(finder, Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(name))


class Finder(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self.name, self.base = name, f"{name}.kgen"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.base and not fullname.startswith(f"{self.base}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(fullname, spec.loader.path, self.name)
        return spec


class Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, name: str) -> None:
        super().__init__(fullname, path)
        self.under = name

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = Renamed(self.under).visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


class Renamed(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.under = name

    def _new(self, module: str) -> str:
        return f"{self.under}.{module}" if module == "kgen" or module.startswith("kgen.") else module

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module and not node.level:
            node.module = self._new(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            if self._new(alias.name) != alias.name:
                raise ImportError(f"`import {alias.name}` cannot be read under another name: use `from ... import`")
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS:
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    argument.value = self._new(argument.value)
        return node
