"""Sources are parsed from many threads at once, and no thread pays for another one's."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import parsed

from kgen.gates.parsing import PARTS, UNPARSABLE, below, every, looked, parse

# Threads change in the middle of a tree only where the collector runs code: here it does, often. Without the lock one
# of these parses ends in CPython 3.11 with "AST constructor recursion depth mismatch", each time this is run.
MANY = """
import gc, time
from concurrent.futures import ThreadPoolExecutor
from kgen.gates.parsing import parse

SOURCE = "x = " + "(" * 60 + "1" + ")" * 60 + "\\n" + "def f(a):\\n    return [a * (a - c[a:3]) for c in a]\\n" * 40
gc.callbacks.append(lambda *_: time.sleep(0.001))
gc.set_threshold(500)
with ThreadPoolExecutor(4) as threads:
    print({len(tree.body) for tree in threads.map(parse, [SOURCE] * 80)})
"""
WITHOUT_PARTS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
WORDS = ("identifier", "string", "int", "constant", "expr_context", "operator", "unaryop", "boolop", "cmpop")
ALONE = (
    "kgen.gates.parsing",
    "kgen.gates.builder",  # in a process of its own, with one thread
    "kgen.export.own_name",  # stands alone in a published kernel, and parses while Python imports it
)


def test_threads_that_parse_side_by_side_all_get_their_tree() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("{41}\n", "")


def test_no_other_module_calls_the_parser() -> None:
    callers = {
        name
        for name, _, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "parse" and getattr(node.value, "id", "") == "ast"
    }
    assert callers and all(name.startswith(ALONE) for name in callers)


@pytest.mark.parametrize("text", ["def", "x = 1\0", "(" * 5_000, b"\xff"])
def test_what_is_no_python_is_one_of_the_errors_named(text: str | bytes) -> None:
    with pytest.raises(UNPARSABLE):
        parse(text)


@pytest.mark.parametrize("kind", [kind for kind in PARTS if kind._fields], ids=lambda kind: kind.__name__)
def test_of_a_common_node_all_fields_with_parts_are_known_in_their_order(kind: type[ast.AST]) -> None:
    """Python's own description of a node has the types of its fields: Attribute(expr value, identifier attr, ...)."""
    fields = re.findall(r"(\w+)[?*]? (\w+)", (kind.__doc__ or "").partition("(")[2])
    assert tuple(name for _, name in fields) == kind._fields
    assert PARTS[kind] == tuple(name for type_, name in fields if type_ not in WORDS)


@pytest.mark.parametrize("path", [Path(__file__), *sorted((Path(__file__).parent / "near_misses").glob("*.py"))])
def test_no_node_is_missed(path: Path) -> None:
    tree = parse(path.read_text())
    wanted = [node for node in ast.walk(tree) if not isinstance(node, WITHOUT_PARTS)]
    assert [node for node in every(tree) if not isinstance(node, WITHOUT_PARTS)] == wanted


def test_the_parts_of_several_nodes_stand_one_behind_the_other() -> None:
    a, b = parse("f(x, k=1)\nreturned = {1: -y, **z}\n").body
    found = [ast.unparse(node) for node in below([a, b])]
    assert found == ["f(x, k=1)", "returned", "{1: -y, **z}"]
    assert [ast.unparse(node) for node in below(below([a]))] == ["f", "x", "k=1"]


def test_nodes_stand_level_by_level_and_by_kind_as_a_walk_comes_to_them() -> None:
    seen = looked(parse(Path(__file__).read_text()))
    assert [node for level in seen.levels for node in level] == every(seen.tree)
    assert all(child in seen.levels[2] for node in seen.levels[1] for child in below([node]))
    for kind in (ast.Name, ast.Call, ast.FunctionDef):
        assert seen.kinds[kind] == [node for node in every(seen.tree) if type(node) is kind]
    assert sum(map(len, seen.kinds.values())) == len(every(seen.tree)) and ast.Await not in seen.kinds
