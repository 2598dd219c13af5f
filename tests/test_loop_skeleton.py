"""Sources that differ in the values of their tables only are looked through once, and no others are."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.gates.parsing import UNPARSABLE, Looked, every, parse
from kgen.gates.skeleton import once, skeleton
from kgen.loop.population import shape

HEAD = '"""größer"""\nimport cutlass\n'
TAIL = "\n\ndef f(x):\n    return cutlass.cute.copy(x, 3)\n"


def same(a: str, b: str) -> bool:
    return skeleton(f"{HEAD}{a}{TAIL}") == skeleton(f"{HEAD}{b}{TAIL}")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("A = 1", "A = 22.5"),
        ("A = 'x'", 'A = "längeres"'),
        ("A, B = 8, True", "A, B = 16, False"),
        ("A: int = 1  # 3", "A: int = 2  # 3"),
        ("T = ((8, 'ring'), [None, -1])", "T = ((16, 'bulk'), [0, -7.5])"),
        ("T = {\n    'A': (1, 2),\n}", "T = {\n    'B': (3, 4),\n}"),
    ],
)
def test_values_of_literals_do_not_count(a: str, b: str) -> None:
    assert a != b and same(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("A = 1", "B = 1"),
        ("A = 1", "A = -1"),
        ("A = (1,)", "A = [1]"),
        ("A = (1,)", "A = (1, 2)"),
        ("A = ()", "A = []"),
        ("A = 'x'", "A = x"),
        ("A = 'x'", "A = f'x'"),
        ("A = 1", "A = 1 + 0"),
        ("A = (1, cutlass.one)", "A = (1, cutlass.two)"),
        ("A = (\n    1,\n)", "A = (1,)"),  # what follows stands on other lines
        ("A = {1: 2}", "A = {1: {2}}"),
        ("A = 1  # a", "A = 1  # b"),
        ("f(1)", "f(2)"),
        ("A = 1\r\nB = 2", "A = 3\r\nB = 4"),
        ("A = (1, 2)", "A = Tuple(0,0)"),  # the form of a literal is no call that a source may write
        ("A = 1", "A = 0\n"),
    ],
)
def test_everything_else_does(a: str, b: str) -> None:
    assert not same(a, b)


@given(st.lists(st.integers() | st.text(max_size=4) | st.booleans() | st.none(), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_sources_with_one_skeleton_have_the_same_names_structure_and_lines(
    values: list[object], data: st.DataObject
) -> None:
    def source(row: list[object]) -> str:
        return f"{HEAD}ROWS = {tuple(row)!r}\nLAST = 3{TAIL}"

    other = [data.draw(st.integers(0) | st.text(max_size=4)) for _ in values]
    if skeleton(source(values)) != skeleton(source(other)):
        return

    def seen(text: str) -> list[tuple[type[ast.AST], str, int]]:
        found = [n for n in every(parse(text)) if not isinstance(n, ast.Constant)]
        return [(type(n), getattr(n, "id", getattr(n, "attr", "")), getattr(n, "lineno", 0)) for n in found]

    assert seen(source(values)) == seen(source(other))


def test_of_sources_with_one_skeleton_one_is_looked_through() -> None:
    looked = list[Looked]()

    def names(seen: Looked) -> int:
        looked.append(seen)
        return len(seen.tree.body)

    texts = [f"{HEAD}ONLY_IN_THIS_TEST = {n}{TAIL}" for n in (1, 2, 3)]
    assert [once("a test's", text, names) for text in [*texts, texts[0] + "1\n"]] == [4, 4, 4, 5]
    assert len(looked) == 2


def test_a_source_that_cannot_be_parsed_has_none() -> None:
    with pytest.raises(UNPARSABLE):
        skeleton("A = (")
    assert shape("Abc = (bcd") == {"Abc", "bcd"}


EVERYTHING = """
import a.b as c
from . import d
async def f(x: int, /, y=1, *z, k: str = "v", **w) -> None:
    async with x as e, y: pass
    await x
    return (yield from y)
class C(B, metaclass=M):
    x: int = -1 + 2 * 3 // 4 % 5 ** ~6 @ 7 << 8 >> 9 & 10 | 11 ^ 12
    del x, y[1:2:3], z.w
try: assert not x and y or z, f"{x!r:>{y}} {z}"
except (A, B) as e: raise A from e
else: x += 1; y @= 2; z: int
finally: pass
while x < y <= z != w is not None: continue
for a, *b in c: break
match x:
    case {"k": 1, **rest} | [1, *_] | C(a=2) | (None as n): global g
v = {**a, "k": [i for i in j if i if k]}, {*a, 1}, {p: q for p in r}, (lambda u, *v: u(*w, **x)) if x else (y := 2), ...
g.h(1)(2).i[j](k=3); l(m)(n)
"""


@pytest.mark.parametrize("source", [f"{HEAD}{TAIL}", EVERYTHING, ""])
def test_a_shape_is_which_kinds_stand_in_which_and_what_is_called_by_a_plain_walk(source: str) -> None:
    tree = parse(source)
    inner = [(a, b) for a in ast.walk(tree) for b in ast.iter_child_nodes(a) if not isinstance(b, ast.expr_context)]
    called = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    plain = {f"call {name}" for name in called if name.replace(".", "").isidentifier()}
    found = shape(source)
    assert {f"{type(a).__name__}>{type(b).__name__}" for a, b in inner} == {
        s for s in found if not s.startswith("call")
    }
    assert plain <= found and len({s for s in found if s.startswith("call")}) >= len(plain)
