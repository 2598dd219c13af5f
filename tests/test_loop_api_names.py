"""The index of a package's public names, on a package written here, and on the installed compiler."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgen.diagnosis.api_names import MAX_NEAREST, Names, installed
from kgen.diagnosis.api_unknown import unknown_names
from kgen.loop.tools import LookupApi
from kgen.proposers.tools import Toolbox
from kgen.proposers.wire import ToolCall

FILES = {
    "__init__.py": "from . import cute\nfrom .base import *\n",
    "base.py": """from .cute.core import make
class Num(int):
    'A number.'
    def to(self, kind: type) -> int: ...
_hidden = 1
""",
    "cute/__init__.py": "from .core import make as made, LIMIT\nfrom ..base import Num\n",
    "cute/core.py": """from cutlass.cute import made
LIMIT: int = 4
def make(shape, *, stride=None) -> int:
    'Make it.\\n\\nThen more.'
""",
    "_mlir/secret.py": "def inner(): ...\n",
    "kinds.py": """__all__ = ['Shown']
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .cute.core import make as checked
else:
    other = 1
try:
    class Shown: ...
except ImportError:
    pass
Kept = 1
""",
    "taking.py": "from .kinds import *\n",
    "broken.py": "def (\n",
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    root = tmp_path_factory.mktemp("package") / "cutlass"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Names(root)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cute.core.make", "def make(shape, *, stride=None) -> int\nMake it.\n\nThen more."),
        ("cutlass.cute.made", "def make(shape, *, stride=None) -> int"),  # taken over under another name, in a circle
        ("cute.LIMIT", "LIMIT: int = 4"),
        ("cute.Num", "class Num(int)\n    methods: to\nA number."),
        ("Num", "class Num(int)"),  # by *
        ("Num.to", "def to(self, kind: type) -> int"),
        ("cute.core.make()", "def make"),
        ("taking.Shown", "class Shown()"),
        ("kinds.Kept", "Kept = 1"),
        ("kinds.other", "other = 1"),
    ],
)
def test_a_name_has_its_signature_and_words(names: Names, name: str, says: str) -> None:
    found = names.lookup(name)
    assert found is not None and says in found and found.startswith("cutlass.")


NOT_THERE = ["cute.mak", "_mlir.secret.inner", "base._hidden", "broken", "", "cute", "os.system"]


# the last two: what `*` does not give, and what only a type checker reads
@pytest.mark.parametrize("name", [*NOT_THERE, "taking.Kept", "kinds.checked"])
def test_what_is_no_public_name_is_not_found(names: Names, name: str) -> None:
    assert names.lookup(name) is None


def test_the_nearest_names_are_real_and_the_same_word_elsewhere_comes_first(names: Names) -> None:
    assert set(names.nearest("cute.arch.make")[:2]) == {"cutlass.cute.core.make", "cutlass.make"}
    assert "cutlass.cute.LIMIT" in names.nearest("cute.LIMITS")


@given(st.text(max_size=40))
def test_any_text_is_looked_up_without_an_exception(names: Names, text: str) -> None:
    assert names.lookup(text) is None or names.lookup(text)
    near = names.nearest(text)
    assert len(near) <= MAX_NEAREST and all(names.lookup(name) for name in near)


def test_no_name_that_is_found_is_reported_as_unknown(names: Names) -> None:
    found = [name for alike in names._defined.values() for name in alike]
    assert len(found) > 12
    for name in found:
        assert names.lookup(name) and unknown_names(f"import cutlass\n{name}", names) == ()


def test_a_model_is_told_the_nearest_names_in_one_line(names: Names) -> None:
    use = Toolbox([LookupApi(names)]).use(ToolCall("1", "lookup_api", '{"name": "cute.core.maek"}'))
    assert use.code == "refused" and "nearest: " in use.result and "cutlass.cute.core.make" in use.result


@pytest.mark.deep  # a few hundred files to read
def test_the_installed_compiler_has_the_names_that_the_worked_example_uses() -> None:
    found = installed()
    if found is None:
        pytest.skip("no compiler here")
    for name in ("cute.copy", "cute.make_layout", "cute.arch.warp_reduction_sum", "Float32"):
        assert found.lookup(name), name
    assert "cutlass.cute.make_layout" in found.nearest("cute.make_layuot")
