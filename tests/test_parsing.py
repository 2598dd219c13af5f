"""Sources are parsed from many threads at once, and no thread pays for another one's."""

import ast
import subprocess
import sys

import pytest
from support.checkout import parsed

from kgen.gates.parsing import UNPARSABLE, parse

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
ALONE = ("kgen.gates.parsing", "kgen.gates.builder")  # the builder parses in a process of its own, with one thread


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
