"""The screen: what it refuses, under which code and line, and the honest code that it must let through."""

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgen.gates.screen import MAX_BYTES, MAX_DEPTH, screen

ROOT = Path(__file__).parent.parent
HEAD = "import cutlass\nimport cutlass.cute as cute\nimport cuda.bindings.driver as cuda\n"

# one offending line each -> code
REFUSED = {
    "import os": "screen.import",
    "import torch": "screen.import",
    "import numpy as np": "screen.import",
    "from torch import nn": "screen.import",
    "import cutlass.torch": "screen.import",
    "from cutlass import torch": "screen.import",
    "from cutlass import *": "screen.import",
    "from . import x": "screen.import",
    "from __future__ import annotations": "screen.import",
    "import cuda": "screen.import",
    "from cuda.bindings import runtime": "screen.import",
    "from cuda.bindings.driver import cuMemAlloc": "screen.import",
    "from cutlass.base_dsl import os": "screen.import",
    "x = eval('1')": "screen.name",
    "x = open('/etc/passwd')": "screen.name",
    "x = globals()": "screen.name",
    "f = exec": "screen.name",
    "x = cute.os": "screen.name",
    "x = cute.runtime.load_module('x.o')": "screen.name",
    "x = cute.compile(None)": "screen.name",
    "x = __import__('os')": "screen.dunder",
    "x = __builtins__": "screen.dunder",
    "x = ().__class__": "screen.dunder",
    "x = cute.__dict__": "screen.dunder",
    "x = (lambda: 0).__globals__": "screen.dunder",
    "class A:\n    def __getattr__(self, n): return n": "screen.dunder",
    "x = getattr(cute, '__dict__')": "screen.getattr",
    "x = getattr(cute, 'o' + 's')": "screen.getattr",
    "g = getattr": "screen.getattr",
    "x = list(map(getattr, [cute], ['os']))": "screen.getattr",
    "cuda.cuMemAlloc(4)": "screen.driver",
    "cuda.cuStreamCreate(0)": "screen.driver",
    "cute.arch.thread_idx = None": "screen.patch",
    "cutlass.Float32 += 1": "screen.patch",
    "import typing\nx = typing.sys": "screen.name",
    "import functools as f\nx = f.namedtuple": "screen.name",
    "from typing import sys": "screen.import",
    "x = cute.core.operator": "screen.name",
    "match 1:\n    case int(__class__=c): pass": "screen.dunder",
    "class A(metaclass=type): pass": "screen.statement",
    "async def f(): pass": "screen.statement",
}

HONEST = '''
"""No eval, no exec, no torch: os.system and __import__ are only mentioned here."""
import functools
import math
import typing
from cuda.bindings import driver
from cutlass import Float32
from cutlass.cute.nvgpu import cpasync, warp

# import os; eval("1"); globals()["torch"]


class Kernel:
    """Opens nothing; compiles nothing."""

    def __init__(self, dims):
        super().__init__()
        self.opened = "open('x') __class__ torch.compile"
        self.compiled: typing.Optional[int] = None
        self.tile = math.ceil(dims["hidden"] / 8)
        self.fn = functools.partial(max, 3)

    def __call__(self, m, stream: cuda.CUstream, other: driver.CUstream):
        self.osc = getattr(self, "tile", 1)
        regs = [cute.make_rmem_tensor((8,), Float32)]
        regs[0][1] = Float32(1.0)
        return regs
'''


@pytest.mark.parametrize("line", list(REFUSED))
def test_a_forbidden_line_is_found_with_its_number(line: str) -> None:
    findings = screen(HEAD + "\n" + line + "\n")
    assert findings, line
    assert findings[0].code == REFUSED[line]
    assert findings[0].line >= 5
    assert "\n" not in str(findings[0])


def test_honest_code_with_forbidden_words_passes() -> None:
    assert screen(HEAD + HONEST) == []


@pytest.mark.parametrize(
    "path", ["docs/examples/moe_shared.py", *(f"tests/candidates/{n}.py" for n in ("launches", "row_copy"))]
)
def test_real_candidates_pass(path: str) -> None:
    assert screen((ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "attack", sorted((ROOT / "tests" / "candidates" / "attacks").glob("*.py")), ids=lambda p: p.stem
)
def test_attacks_that_import_something_are_refused(attack: Path) -> None:
    source = attack.read_text()
    assert bool(screen(source)) == ("import " in source or "open(" in source)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("x = 1\r\n", "screen.encoding"),
        ("x = 1\0\n", "screen.encoding"),
        ("\ufeffx = 1\n", "screen.encoding"),
        ("x = '\ud800'\n", "screen.encoding"),
        ("#" * (MAX_BYTES + 1), "screen.size"),
        ("x = " + "-" * 300 + "1\n", "screen.size"),
        ("x = " + "(" * 500 + ")" * 500 + "\n", "compile.syntax"),
        ("def f(:\n", "compile.syntax"),
        ("  x = 1\n", "compile.syntax"),
    ],
)
def test_text_rules(source: str, code: str) -> None:
    assert screen(source)[0].code == code


def test_sources_are_screened_in_many_threads_at_once() -> None:
    """CPython 3.11.2 gives up with a SystemError when threads parse side by side."""
    deep = "x = " + "(" * 60 + "1" + ")" * 60 + "\n"
    source = "\n".join(deep for _ in range(40))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: screen(source), range(64)))
    assert all(f == found[0] for f in found)


def test_a_dotted_name_of_thousands_of_parts_is_refused_before_it_is_parsed() -> None:
    """Python's parser takes 650 MB for one of 30 KB: found by fuzzing."""
    just = "import cutlass" + ".a" * 199 + "\n"
    assert [f for f in screen(just) if f.code == "screen.size"] == []
    for name in ("cutlass" + ".a" * 200, "cutlass" + " . \\\n a" * 10_000):
        found = screen(f"import math\nimport {name}\n")
        assert [(f.code, f.line) for f in found] == [("screen.size", 2)]


def levels(node: ast.AST) -> int:
    return 1 + max((levels(child) for child in ast.iter_child_nodes(node)), default=0)


@pytest.mark.parametrize("leaf", ["1", "x", "[]", "x.y", "x and y", "lambda: x", "{**x}", "not x", "f(y=x)"])
def test_the_deepest_source_that_passes_has_as_many_levels_as_are_allowed(leaf: str) -> None:
    """Levels are counted here by recursion, contexts and operators among them."""
    deep = {n: f"z = {'-' * n}({leaf})\n" for n in range(MAX_DEPTH - 8, MAX_DEPTH)}
    refused = {n for n, source in deep.items() if [f.code for f in screen(source)] == ["screen.size"]}
    assert refused == {n for n, source in deep.items() if levels(ast.parse(source)) > MAX_DEPTH}
    assert 0 < len(refused) < len(deep)


def test_findings_on_one_line_come_in_the_order_of_the_rules_and_of_the_nodes() -> None:
    line = "x = getattr(f, g).format_map(getattr, eval, eval.__class__, cute.os)"
    assert [str(f) for f in screen(HEAD + line)] == [
        "line 4: attribute __class__ is not allowed",
        "line 4: getattr needs a plain, constant attribute name",  # those of one code: the nodes level by level
        "line 4: format_map needs a constant text whose fields read no attributes",
        "line 4: getattr needs a plain, constant attribute name",
        "line 4: eval is not allowed",
        "line 4: attribute os is not allowed",
        "line 4: eval is not allowed",
    ]


@pytest.mark.parametrize(
    ("clean", "bad", "code"),
    [
        ("A = 1", "A = eval", "screen.name"),
        ("A = (1, 2)", "A = (1, vars)", "screen.name"),
        ("A = 'x'", "A = f'{open}'", "screen.name"),
        ("A = 'x'", "A = '\u202e'", "screen.encoding"),
        ("A = {'k': 1}", "A = {'k': __import__}", "screen.dunder"),
        ("A = 1", f"A = '{'x' * MAX_BYTES}'", "screen.size"),
        ("A = 'x' 'y'", "A = 'x' and exec", "screen.name"),
        ("A = 1", f"A = {'[' * MAX_DEPTH}", "compile.syntax"),
    ],
)
def test_a_clean_source_answers_for_no_other_that_looks_like_it(clean: str, bad: str, code: str) -> None:
    tail = "\n\ndef kernel(x):\n    return x\n"
    assert not screen(clean + tail)
    assert [f.code for f in screen(bad + tail)][:1] == [code]
    assert not screen(clean + tail)


def test_sources_that_differ_in_their_tables_have_the_same_findings_on_their_own_lines() -> None:
    tails = ("\n\ndef f(x):\n    return eval(x)\n", "\n\n\nimport os\n")
    for tail in tails:
        one, two, more = (screen(f"TABLE = {table}{tail}") for table in ("(1, 2)", "(16, 'a longer one')", "(1,\n2)"))
        assert one == two and len(one) == 1
        assert [f.line for f in more] == [one[0].line + 1] and more[0].message == one[0].message
