"""Who imports whom: the layers, no cycles, a light `import kgen`, and a GPU side that needs torch and tvm-ffi only.

Imports are read from the syntax tree, those inside functions included.
"""

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

from support.checkout import imports, modules, parsed

from kgen.gates.kit_modules import LEFT_OUT

# layer -> the layers it may import (each may import itself); kgen itself (the version) is free to all
BASE = {"records"}
OPS = BASE | {"contract", "ops"}
SERVE = OPS | {"store", "serve"}
GATES = SERVE | {"model", "gates"}
ABOVE = GATES | {"diagnosis", "config", "proposers", "promotion", "prompts", "pool"}
ALLOWED = {
    "records": set(),
    "prompts": set(),
    "generated_kernels": set(),
    "store": BASE,
    "config": BASE | {"store"},
    "contract": BASE,
    "ops": BASE | {"contract"},
    "serve": OPS | {"store"},
    "model": SERVE,
    "gates": SERVE | {"model"},
    "diagnosis": GATES,
    "proposers": GATES | {"diagnosis", "config", "prompts"},
    "promotion": GATES,
    "pool": GATES,
    "export": GATES,
    "loop": ABOVE,
    "report": ABOVE | {"loop"},
    "agents": ABOVE | {"loop", "report"},
    "bench": ABOVE | {"loop"},
    "cli": ABOVE | {"loop", "report", "agents", "bench", "export"},
}
HEAVY = ("torch", "cutlass", "openai", "langgraph")
MODEL_LAYERS = ("ops", "model")  # only these may name the model

KNOWN = modules()


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {name: found for name, _, found in parsed()}


@functools.cache
def graph() -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    return {name: imports(name, KNOWN[name], found, KNOWN) for name, found in trees().items()}


def layer(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_every_layer_is_in_the_table() -> None:
    assert {layer(n) for n in KNOWN} - {""} == set(ALLOWED)


def test_imports_point_down_the_layers() -> None:
    wrong = []
    for name in sorted(KNOWN):
        used = {layer(m) for m in graph()[name] if m.startswith("kgen.")} - {layer(name)}
        wrong += [f"{name} imports {up}" for up in sorted(used - ALLOWED.get(layer(name), set()))]
    assert len(KNOWN) > 400 and not wrong


def test_no_import_cycles() -> None:
    done: set[str] = set()
    for start in graph():
        path: list[str] = []

        def visit(name: str, path: list[str] = path) -> None:
            assert name not in path, "cycle: " + " -> ".join([*path[path.index(name) :], name])
            if name in done:
                return
            path.append(name)
            for target in sorted(graph()[name] & graph().keys()):
                visit(target)
            path.pop()
            done.add(name)

        visit(start)


def test_every_import_of_kgen_names_something_that_exists() -> None:
    unknown = {
        f"{n}: {m}" for n, targets in graph().items() for m in targets if m.startswith("kgen.") and m not in KNOWN
    }
    assert not unknown


def loaded(statement: str, unwanted: tuple[str, ...]) -> list[str]:
    """Which of `unwanted` a fresh interpreter has loaded after `statement`."""
    script = f"{statement}\nimport json, sys\nprint(json.dumps([m for m in {unwanted!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_import_kgen_is_light() -> None:
    assert loaded("import kgen", HEAVY) == []


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    assert loaded("import kgen.cli", HEAVY) == []


def test_serving_and_the_model_load_no_agent_and_no_compiler() -> None:
    below = sorted(n for n in KNOWN if layer(n) in {"model", *ALLOWED["model"]})
    assert loaded("import " + ", ".join(below), ("cutlass", "openai", "langgraph", "typer", "rich", "jinja2")) == []


def test_records_and_stores_do_without_torch() -> None:
    below = sorted(n for n in KNOWN if layer(n) in {"store", *ALLOWED["store"]})
    assert loaded("import " + ", ".join(below), HEAVY) == []


def closure(entries: tuple[str, ...]) -> set[str]:
    """All modules of kgen that importing `entries` may reach, their packages included."""
    reached: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name in reached or name not in KNOWN:
            continue
        reached.add(name)
        parents = [name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)]
        waiting += [*parents, *graph()[name]]
    return reached


def test_what_a_kit_carries_needs_only_the_standard_library_torch_and_tvm_ffi() -> None:
    runner = tuple(n for n in KNOWN if n.startswith("kgen.gates.runner") and not n.startswith(LEFT_OUT))
    reached = closure(("kgen.gates.kit_host", "kgen.gates.kit_boot", *runner))
    foreign = {
        f"{name}: {target}"
        for name in reached
        for target in graph()[name]
        if target.split(".")[0] not in {"kgen", "torch", "tvm_ffi", *sys.stdlib_module_names}
    }
    assert len(reached) > len(runner) and not foreign


def test_the_kit_carries_every_module_that_its_entries_reach() -> None:
    from kgen.gates.kit_modules import ENTRIES, module_files

    carried = {p.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for p in module_files()}
    assert closure(ENTRIES) <= carried


def named_models(path: Path) -> list[str]:
    """Words of the text that name the model, with their line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = "".join(c if c.isalnum() else " " for c in line.lower()).split()
        found += [f"{path.name}:{number}: {w}" for w in words if w in ("k3", "kimi", "moonshot")]
    return found


def test_only_the_model_pack_names_the_model() -> None:
    sources = [p for n, p in KNOWN.items() if layer(n) not in MODEL_LAYERS]
    sources += [p for folder in {p.parent for p in sources} for p in folder.glob("*.c")]
    assert not [hit for path in sources for hit in named_models(path)]


def defined(module: str) -> set[str]:
    """Names that a module's top level binds."""
    found: set[str] = set()
    for node in trees()[module].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return found


def names_something(text: str) -> bool:
    module, _, attribute = text.replace(":", ".").rpartition(".")
    return text in KNOWN or (module in KNOWN and attribute in defined(module))


def test_what_strings_name_exists() -> None:
    # the runner's table of jobs, children's entry points, exceptions known by name: a rename would break them silently
    named = {
        (name, node.value)
        for name, found in trees().items()
        for node in ast.walk(found)
        if isinstance(node, ast.Constant) and re.fullmatch(r"kgen(\.\w+)+(:\w+)?", str(node.value))
    }
    assert len(named) > 5 and not {(n, text) for n, text in named if not names_something(str(text))}
