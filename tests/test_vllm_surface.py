"""Everything that the plugin uses of vLLM exists in vLLM's own source, and the stand-in has it under the same names.

The source is read, never imported: from the wheel that KGEN_VLLM_WHEEL names (`pip download --no-deps vllm==0.33.0`),
or from an installed vLLM. Without either, only the stand-in and the reader are tested.
"""

import ast
import importlib.util
import inspect
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support import vllm_standin
from support.vllm_surface import FUNCTIONS, SURFACE, Source, Used

from kgen.serve.vllm import ARCHITECTURE

STANDIN = Source(lambda path: inspect.getsource(vllm_standin))


def vllm_source() -> Callable[[str], str] | None:
    if named := os.environ.get("KGEN_VLLM_WHEEL", ""):
        wheel = zipfile.ZipFile(named)
        return lambda path: wheel.read(path).decode()
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.origin:
        return None
    root = Path(spec.origin).parents[1]
    return lambda path: (root / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def source() -> Source:
    text = vllm_source()
    if text is None:
        pytest.skip("no vLLM here: set KGEN_VLLM_WHEEL to its wheel (pip download --no-deps vllm==0.33.0)")
    return Source(text)


def test_vllm_has_what_is_used_of_its_classes(source: Source) -> None:
    assert [line for used in SURFACE for line in source.missing(used)] == []


def test_vllm_has_the_functions_that_are_called(source: Source) -> None:
    assert [(path, name) for path, name in FUNCTIONS if name not in source.functions(path)] == []


def test_the_architecture_stands_in_vllms_table_with_a_module_that_can_be_imported(source: Source) -> None:
    tree = source.tree("vllm/model_executor/models/registry.py")
    rows = {
        key.value: ast.literal_eval(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == ARCHITECTURE
    }
    module, name = rows[ARCHITECTURE]
    assert module.startswith("vllm.") and name == ARCHITECTURE
    tables = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    assert "_VLLM_MODELS" in tables


def test_a_plugin_group_is_loaded_by_that_name(source: Source) -> None:
    assert '"vllm.general_plugins"' in source._text("vllm/plugins/__init__.py")


def test_the_wrapper_builds_its_language_model_through_the_registry(source: Source) -> None:
    text = source._text("vllm/models/kimi_k3/nvidia/model.py")
    assert f'architectures=["{ARCHITECTURE}"]' in text and "self.language_model.get_model_state_cls()" in text


def test_captures_run_the_model_once_before_and_the_state_once_after(source: Source) -> None:
    # what `in_decode_graph` and `captured` rest on
    capture = source._text("vllm/v1/worker/gpu/cudagraph_utils.py")
    assert capture.index("forward_fn(CUDAGraphMode.NONE)") < capture.index("forward_fn(CUDAGraphMode.PIECEWISE)")
    runner = source._text("vllm/v1/worker/gpu/model_runner.py")
    assert runner.index("self.cudagraph_manager.capture(") < runner.index("self.model_state.capture_inner_cudagraphs(")


@pytest.mark.parametrize("used", [u for u in SURFACE if u.standin], ids=lambda u: u.name)
def test_the_stand_in_has_the_same_names(used: Used) -> None:
    inherited = {"module_name", "models"}
    here = Used("standin", used.standin, tuple(a for a in used.attributes if a not in inherited), used.methods)
    parameters = {n: p for n, p in here.methods.items() if n not in ("forward", "__init__", "capture_inner_cudagraphs")}
    assert STANDIN.missing(Used("standin", used.standin, here.attributes, parameters)) == []


@pytest.mark.parametrize(
    ("used", "lost"),
    [
        (Used("f", "A", ("here", "field", "prop", "later")), []),
        (Used("f", "A", ("gone",)), ["f: A.gone"]),
        (Used("f", "A", ("base",), bases=(("f", "B"),)), []),
        (Used("f", "A", ("base",)), ["f: A.base"]),
        (Used("f", "A", (), {"call": ("x", "y")}), []),
        (Used("f", "A", (), {"call": ("x",)}), []),
        (Used("f", "A", (), {"call": ("y",)}), ["f: A.call('y',)"]),
        (Used("f", "A", (), {"called": ()}), ["f: A.called()"]),
        (Used("f", "C"), ["f: C or one of its bases"]),
    ],
)
def test_the_reader_sees_what_is_there_and_what_is_not(used: Used, lost: list[str]) -> None:
    text = (
        "class B:\n    def __init__(self):\n        self.base = 1\n"
        "class A(B):\n    field: int = 3\n    @property\n    def prop(self): return 1\n"
        "    def call(self, x, *, y=None): return gone\n    def set(self):\n        self.here, self.later = 1, 2\n"
    )
    assert Source(lambda path: text).missing(used) == lost
