"""Which modules of kgen a kit needs: the import closure of its entry points, read from the source, nothing imported."""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kgen.gates.parsing import parse

ENTRIES = ("kgen.gates.kit_host", "kgen.gates.runner.__main__")
NAMED = re.compile(r"(kgen(?:\.\w+)+)(?::\w+)?")  # modules named in strings, such as the runner's job kinds
# the interpreter: a kit has a GPU, and no NumPy
LEFT_OUT = ("kgen.gates.ptx", "kgen.gates.runner.interpreted", "kgen.gates.ranks.interpreted")
DATA_SUFFIXES = (".c", ".safetensors")  # package data that is needed at run time, where it is there


def module_files(entries: Iterable[str] = ENTRIES) -> dict[str, bytes]:
    """Path inside a package folder (`kgen/gates/...`) -> bytes, for every module that the entries reach."""
    files: dict[str, bytes] = {}
    waiting, seen = list(entries), set()
    while waiting:
        name = waiting.pop()
        if name in seen or name.startswith(LEFT_OUT) or (path := _source(name)) is None:
            continue
        seen.add(name)
        files[_inside(name, path)] = path.read_bytes()
        if path.name == "__init__.py":
            for extra in sorted(p for p in path.parent.iterdir() if p.suffix in DATA_SUFFIXES):
                files[f"{name.replace('.', '/')}/{extra.name}"] = extra.read_bytes()
        parents = [name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)]
        waiting += [*parents, *_mentioned(name, path)]
    return dict(sorted(files.items()))


def _source(name: str) -> Path | None:
    """The file of a module, None for what is no module of kgen (a function imported from one)."""
    if name != "kgen" and not name.startswith("kgen."):
        return None
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _inside(name: str, path: Path) -> str:
    stem = name.replace(".", "/")
    return f"{stem}/__init__.py" if path.name == "__init__.py" else f"{stem}.py"


def _mentioned(name: str, path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and (match := NAMED.fullmatch(str(node.value))):
            yield match.group(1)
