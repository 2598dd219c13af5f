"""Names that the compiler's package does not have: on a package written here, on every kernel here, in a run."""

import json
import re
from collections.abc import Iterator

import pytest
from support.checkout import ROOT

from kgen.diagnosis.api_names import Names, installed
from kgen.diagnosis.api_unknown import unknown_names
from kgen.gates.screen import screen
from kgen.loop.building import misnamed
from kgen.proposers.families import FAMILIES, render

FILES = {
    "__init__.py": "from . import cute\nfrom .base import *\n",
    "base.py": "class Num: ...\n_hidden = 1\nif True:\n    maybe = 2\nfor each in (1,): pass\n",
    "cute/__init__.py": "from . import arch, lazy, made\nfrom .table import *\nfrom .core import Kind, made_of\n",
    "cute/core.py": "def made_of(): ...\nclass Kind: ...\ndef set_it():\n    global late\n    late = 1\n",
    "cute/table.py": "for _n in ('sin', 'cos'):\n    globals()[_n] = 1\n",
    "cute/arch.py": "from ..base import *\nfrom .closed import *\ndef warp_sum(): ...\n",
    "cute/closed.py": "__all__ = ['shown']\nshown = kept = 1\ndef __getattr__(name): ...\n",
    "cute/lazy.py": "def __getattr__(name): ...\n",
    "cute/made.py": "import sys\nsetattr(sys.modules[__name__], 'x' + 'y', 1)\n",
}
HEAD = "import cutlass\nimport cutlass.cute as cute\nfrom cutlass.cute import arch, made_of, Kind\n"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    root = tmp_path_factory.mktemp("package") / "cutlass"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Names(root)


@pytest.mark.parametrize(
    ("text", "name", "near"),
    [
        ("cute.made_off()", "cutlass.cute.made_off", "cutlass.cute.made_of"),
        ("arch.warp_summ(1).x", "cutlass.cute.arch.warp_summ", "cutlass.cute.arch.warp_sum"),
        ("cutlass.cute.arch.warp_sun", "cutlass.cute.arch.warp_sun", "cutlass.cute.arch.warp_sum"),
        ("cutlass.Numm", "cutlass.Numm", "cutlass.Num"),
        ("cute.sinn", "cutlass.cute.sinn", ""),
        ("arch.kept", "cutlass.cute.arch.kept", ""),  # not in the other's __all__
        ("cute.core.Kinds", "cutlass.cute.core.Kinds", "cutlass.cute.core.Kind"),
        ("from cutlass.cute import mades_of", "cutlass.cute.mades_of", "cutlass.cute.made_of"),
        ("def f():\n    from cutlass.cute import arch as a\n    return a.nope", "cutlass.cute.arch.nope", ""),
    ],
)
def test_a_name_that_is_nowhere_is_reported_with_its_line_and_near_ones(
    names: Names, text: str, name: str, near: str
) -> None:
    (found,) = unknown_names(HEAD + text, names)
    assert found.name == name and found.line == 4 + text.count("\n")
    assert near in found.nearest or not near
    assert f"no attribute {name.rpartition('.')[2]!r}" in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "cute.made_of; cute.sin; cutlass.Num; cutlass.maybe; cutlass.each; cute.core.late; arch.shown; arch.Num",
        "Kind.nothing; made_of().nothing; cute.made_of.nothing; cute.Kind().a.b",  # classes and results
        "cute.lazy.anything; cute.made.xy; cute.arch.__name__",
        "def f(cute): return cute.nope",
        "for arch in (): arch.nope",
        "class cute:\n    x = 1\ncute.nope",
        "try:\n    cute.nope\nexcept AttributeError:\n    pass",
        "cute.nope if hasattr(cute, 'nope') else 0",
        "getattr(cute, 'nope', None)",
        "import math\nmath.nope; other.nope; self.cute.nope",
        "def (",
        "\0",
        "cute." + ".".join("a" * 500) + "(" * 300,
    ],
)
def test_what_may_exist_is_never_reported(names: Names, text: str) -> None:
    assert unknown_names(HEAD + text, names) == ()


def test_what_is_reported_comes_once_and_in_the_order_of_the_text(names: Names) -> None:
    found = unknown_names(HEAD + "cute.b; cute.a\ncute.b\narch.c", names)
    assert [(f.line, f.name[len("cutlass.cute.") :]) for f in found] == [(4, "a"), (4, "b"), (6, "arch.c")]


def sources() -> Iterator[tuple[str, str]]:
    """Every kernel of the repository, (where, text)."""
    for folder in ("generated_kernels", "tests/candidates", "tests/near_misses", "tests/exploits", "docs/examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "cutlass" in (text := path.read_text(errors="replace")):
                yield path.relative_to(ROOT).as_posix(), text
    for path in [*(ROOT / "prompts").rglob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            yield path.name, f"import cutlass\nimport cutlass.cute as cute\n{block}"
    for op, family in FAMILIES.items():
        for number, point in enumerate(family.known):
            yield f"{op} {number}", render(point)


def recorded_as_misnamed(where: str) -> bool:
    path = (ROOT / where).parent / "compile.json"
    return path.is_file() and json.loads(path.read_text())["code"] == "compile.name"


def test_no_kernel_of_the_repository_is_reported_but_those_that_the_compiler_said_it_of() -> None:
    found = installed()
    if found is None:
        pytest.skip("no compiler here")
    read = list(sources())
    assert len(read) > 80
    said = {where for where, text in read if unknown_names(text, found)}
    recorded = {text for where, text in read if where.endswith("kernel.py") and recorded_as_misnamed(where)}
    assert said == {where for where, text in read if text in recorded}  # a submission is a candidate's text as well
    assert len(said) >= 2


def test_a_run_says_what_the_compiler_would_say_without_building() -> None:
    if installed() is None:
        pytest.skip("no compiler here")
    good = (ROOT / "docs" / "examples" / "moe_shared.py").read_text()
    bad = good.replace("warp_reduction_sum", "warp_reduce_sum")
    report = misnamed(bad)
    assert misnamed(good) is None and report is not None and not report.artefacts
    assert report.result.code == "compile.name" and not report.result.passed
    line = 1 + bad[: bad.index("warp_reduce_sum")].count("\n")
    assert "AttributeError: module 'cutlass.cute.arch' has no attribute 'warp_reduce_sum'" in report.result.message
    assert f"candidate.py:{line}" in report.result.message
    assert "cutlass.cute.arch.warp_reduction_sum" in report.result.message
    assert screen("import os\n" + bad) and misnamed("import os\n" + bad) is None  # the screen has its own word first
