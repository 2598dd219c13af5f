"""The source tree that the tests run from, without what builds, runs and tools leave in it."""

import ast
import functools
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"kgen.gates": "gates", "kgen.prompts": "prompts", "kgen.generated_kernels": "generated_kernels"}
LEFT_BEHIND = ("__pycache__", "*.egg-info", "build", "dist", "*.pyz", ".*")


def copy_tree(target: Path) -> Path:
    """A clean copy: hidden folders, caches, builds and run folders stay behind. Nothing stale reaches a wheel."""

    def ignore(folder: str, names: list[str]) -> set[str]:
        left = shutil.ignore_patterns(*LEFT_BEHIND)(folder, names)
        return left | ({n for n in names if n != "README.md"} if Path(folder) == ROOT / "runs" else set())

    return Path(shutil.copytree(ROOT, target, ignore=ignore))


def modules() -> dict[str, Path]:
    """Every module of the import package by its dotted name (generated kernels, which are data, excepted)."""
    roots = {"kgen": ROOT / "pipeline", **{name: ROOT / folder for name, folder in PACKAGES.items()}}
    found = {}
    for package, folder in roots.items():
        paths = [folder / "__init__.py"] if package == "kgen.generated_kernels" else sorted(folder.rglob("*.py"))
        for path in paths:
            parts = [p for p in path.relative_to(folder).with_suffix("").parts if p != "__init__"]
            found[".".join([package, *parts])] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    """Syntax tree of a file, read once a process: by the first test that looks, not when tests are collected."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def parsed() -> list[tuple[str, Path, ast.Module]]:
    """(dotted name, path, syntax tree) of every module."""
    return [(name, path, tree(path)) for name, path in modules().items()]


def imports(name: str, path: Path, tree: ast.Module, known: dict[str, Path]) -> set[str]:
    """The modules that a module imports anywhere in its text: of kgen down to the module, of others as written."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "") if not node.level else _absolute(name, path, node)
            below = {f"{base}.{alias.name}" for alias in node.names}
            found |= {b for b in below if b in known} or {base}
            if any(b not in known for b in below):
                found.add(base)
    return found


def _absolute(name: str, path: Path, node: ast.ImportFrom) -> str:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
