"""How the source reads: ceilings of length, where output and broad handlers may be, what must not be committed."""

import ast
import re
import subprocess
from pathlib import Path

from support.checkout import ROOT, copy_tree, modules, parsed, tree

FILE_LINES = 400
FUNCTION_LINES = 100

# Where `except Exception` or wider may stand without raising again. Elsewhere a handler names what it expects.
BROAD = {
    "gates/runner/__main__.py": "a runner process: the judge must get a reason, whatever happened",
    "gates/ranks/worker.py": "a rank's process: the judge must get a reason, whatever happened",
    "gates/builder/job.py": "a candidate's code may raise anything",
    "gates/builder/server.py": "a fork of the build server ends here, whatever it was",
    "gates/kit_units.py": "a kit on a foreign host: one unit's failure is recorded and the others go on",
    "pipeline/serve/load.py": "serving falls back to the stock op on any doubt",
    "pipeline/proposers/chat.py": "a thread's boundary: the table of faults decides whose fault it was",
    "pipeline/agents/worker.py": "a job's boundary: its client is told in one line, and the next job is another run's",
    "pipeline/cli/boundary.py": "the command's boundary: one line and an exit status instead of a traceback",
    "pipeline/loop/asking.py": "a thread's boundary: raised again in the thread that waits for it",
    "pipeline/loop/counting.py": "hardware counters decide nothing: what goes wrong with them is why there are none",
    "pipeline/loop/proving.py": "a gate that breaks is an error result, which can be repeated; the run goes on",
}
HOSTS = {  # of URLs that may be committed
    "127.0.0.1",
    "localhost",
    "github.com",
    "docs.nvidia.com",
    "api.openai.com",
    "example.com",
    "example.org",
    "www.apache.org",
    "www.w3.org",  # the name of SVG in a picture
    "json.schemastore.org",
    "in-toto.io",  # the name of the statement type
}
RESERVED = (".invalid", ".test", ".example")  # names that no machine has
HOME = re.compile(r"/(?<![\w.$}~-]/)(?:root|home|work|opt|Users)/[\w.-]+")
URL = re.compile(r"https?://(?:[^\s/@\"']*@)?([\w.-]+\.[a-z]+|\d+(?:\.\d+){3}|localhost)", re.IGNORECASE)
DOTTED = re.compile(r"(?<=[\w-])\.pythonhosted\b|\b(?:test\.)?pypi\.org\b", re.IGNORECASE)

TESTS = sorted((ROOT / "tests").rglob("*.py"))


def tracked() -> list[Path]:
    """Text files that are committed or would be; in a tree without git, all that a copy of it holds."""
    if (ROOT / ".git").exists():
        listing = ["git", "ls-files", "-co", "--exclude-standard"]
        said = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [ROOT / line for line in said.stdout.splitlines()]
    else:
        paths = [p for p in ROOT.rglob("*") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)]
    paths = [p for p in paths if "attacks" not in p.parts]  # they reach for such places
    text = (".py", ".c", ".md", ".toml", ".txt", ".yml", ".json", "")
    return [p for p in paths if p.is_file() and p.suffix in text]


def sources() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(ROOT).as_posix(), found) for _, path, found in parsed()]


# A candidate is one file: it holds all stages of its kernel.
LONG = {"tests/candidates/oproj_one_shot.py": 560}


def too_long(path: Path) -> list[str]:
    """What of a file, the file itself included, is longer than it may be."""
    name, lines = path.relative_to(ROOT).as_posix(), len(path.read_text(encoding="utf-8").splitlines())
    found = [f"{name} has {lines} lines"] if lines > LONG.get(name, FILE_LINES) else []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            found += [f"{name}: {node.name} has {length} lines"] if length > FUNCTION_LINES else []
    return found


def test_every_file_can_be_held_in_mind() -> None:
    paths = [*modules().values(), *TESTS]
    assert len(paths) > 1000 and not [said for path in paths for said in too_long(path)]


def test_every_module_says_what_it_is() -> None:
    assert not [path for path, found in sources() if not ast.get_docstring(found)]


def _handles_everything(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False  # cleans up and lets it pass
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id.endswith("Exception")) for kind in kinds)


def test_broad_handlers_stand_at_process_boundaries_only() -> None:
    broad = {
        path
        for path, found in sources()
        for node in ast.walk(found)
        if isinstance(node, ast.ExceptHandler) and _handles_everything(node)
    }
    assert broad == set(BROAD)


def test_only_the_command_line_prints() -> None:
    prints = {
        path
        for path, found in sources()
        for node in ast.walk(found)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert not {p for p in prints if not p.startswith("pipeline/cli/")}


def test_nothing_is_left_for_later() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error", "pytest." + "xfail")
    left = [
        f"{path}: {word}"
        for path in [*modules().values(), *TESTS]
        for word in words
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", path.read_text(encoding="utf-8"))
    ]
    assert not left


def test_no_committed_file_names_a_machine_or_a_host_of_its_own() -> None:
    hits = []
    for path in tracked():
        text = path.read_text(encoding="utf-8")
        strange = [h for h in URL.finditer(text) if h[1] not in HOSTS and not h[1].endswith(RESERVED)]
        for hit in (*strange, *HOME.finditer(text), *DOTTED.finditer(text)):
            hits.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]}")
    assert not hits


def test_the_product_stays_small() -> None:
    folder = ROOT / "generated_kernels"
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 24_000_000


def test_a_copy_of_the_tree_leaves_runs_and_caches_behind(tmp_path: Path) -> None:
    copy = copy_tree(tmp_path / "tree")
    assert not list(copy.rglob("__pycache__")) and not list(copy.rglob(".git"))
    assert {p.name for p in (copy / "runs").iterdir()} <= {"README.md"}
