"""The kit file: refuses wrong machines in one line, is small, and holds everything it needs."""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support.builds import shared
from support.kits import KEY, OP, RUN, make

import kgen
from kgen.gates.compile import CompileGate
from kgen.gates.kit import FLAVOURS, MAX_BYTES, PYTHONS, Contents, KitCandidate, KitError, KitFile, build
from kgen.gates.kit_modules import module_files
from kgen.gates.kit_wheels import HERE, llguidance_pieces
from kgen.gates.modeleval.gate import trained_weights
from kgen.gates.sandbox.levels import NoSandboxError
from kgen.records import Candidate, Origin
from kgen.serve.runtime import installed_flavours, torch_flavour

FLAVOUR = next(iter(installed_flavours()))
SOURCE = (Path(__file__).parents[1] / "docs" / "examples" / "moe_shared.py").read_text()
FORBIDDEN = ("cutlass", "openai", "langgraph", "pydantic", "typer", "rich", "numpy", "hypothesis", "pytest")


def table_of(kit: Path) -> dict[str, Any]:
    with zipfile.ZipFile(kit) as archive:
        return dict(json.loads(archive.read("kit.json")))


@pytest.fixture(scope="session")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> KitCandidate:
    """A real candidate at one nano point, with one mutant, built by the real builder."""
    made = Candidate(OP.name, SOURCE, Origin("test"))
    problems = [OP.problem("nano", 1, "sm_90a")]
    try:
        with CompileGate(OP, tmp_path_factory.mktemp("builds"), shared()) as gate:
            sound, broken = (gate.run(made, problems, defect) for defect in ("", "tile_scale"))
    except NoSandboxError as error:
        pytest.skip(str(error))
    assert sound.result.passed, sound.result.message
    return KitCandidate(made.id, sound.artefacts, broken.artefacts)


@pytest.fixture(scope="session")
def kit(candidate: KitCandidate, kit_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> KitFile:
    """A kit for this Python and the installed flavour."""
    folder = tmp_path_factory.mktemp("kit")
    return build(
        [Contents(OP, RUN, KEY, (candidate,))],
        folder / "kit.pyz",
        kit_cache,
        pythons=(HERE,),
        flavours=(FLAVOUR,),
    )


def start(
    kit: Path, *args: str, python: tuple[str, ...] = (sys.executable,), env: Mapping[str, str] | None = None
) -> Any:
    return subprocess.run([*python, str(kit), *args], capture_output=True, text=True, timeout=120, check=False, env=env)


def altered(kit: Path, folder: Path, **changes: Any) -> Path:
    """A copy with another table of contents."""
    out = folder / "altered.pyz"
    with zipfile.ZipFile(kit) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "kit.json":
                data = json.dumps({**json.loads(data), **changes}).encode()
            new.writestr(name, data)
    return out


def refusal(done: Any, code: int = 3) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return str(line)


@pytest.fixture(scope="session")
def light(candidate: KitCandidate, kit_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> KitFile:
    """The same without a runtime, which is most of the file."""
    contents = [Contents(OP, RUN, KEY, (candidate,))]
    return build(contents, tmp_path_factory.mktemp("light") / "kit.pyz", kit_cache, pythons=(HERE,), flavours=())


@pytest.mark.skipif(torch_flavour() != "", reason="needs a torch without CUDA")
def test_without_a_gpu_the_kit_says_so_in_one_line(kit: KitFile) -> None:
    assert "no CUDA GPU can be used" in refusal(start(kit.path))


def test_another_python_is_refused(kit: KitFile, tmp_path: Path) -> None:
    line = refusal(start(altered(kit.path, tmp_path, pythons=["3.98", "3.99"])))
    assert line == f"kgen kit: needs Python 3.98, 3.99, this is {HERE}"


def test_another_kind_of_machine_is_refused(kit: KitFile, tmp_path: Path) -> None:
    assert "made for linux riscv64" in refusal(start(altered(kit.path, tmp_path, machine="riscv64")))


def test_a_machine_without_a_c_compiler_is_refused(kit: KitFile, tmp_path: Path) -> None:
    line = refusal(start(kit.path, python=(os.path.realpath(sys.executable),), env={"PATH": str(tmp_path)}))
    assert "no C compiler" in line


def test_a_python_without_torch_is_refused(kit: KitFile) -> None:
    assert "no torch here" in refusal(start(kit.path, python=(sys.executable, "-I", "-S")))


def test_a_torch_that_is_too_old_is_refused(kit: KitFile, tmp_path: Path) -> None:
    assert "needs torch >= 99.0, this is" in refusal(start(altered(kit.path, tmp_path, torch="99.0")))


def test_a_cut_off_kit_is_refused(kit: KitFile, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pyz"
    cut.write_bytes(kit.path.read_bytes()[: kit.bytes // 2])
    assert start(cut).returncode != 0


def test_help_works_anywhere(kit: KitFile) -> None:
    done = start(kit.path, "--help", python=(sys.executable, "-I", "-S"))
    assert done.returncode == 0 and "--part I/N" in done.stdout


def test_the_file_is_private_since_it_carries_the_runs_key(kit: KitFile) -> None:
    assert stat.S_IMODE(kit.path.stat().st_mode) == 0o600
    assert table_of(kit.path)["runs"][0]["key"] == KEY.hex()


def test_a_kit_for_all_pythons_and_flavours_is_small_enough(kit: KitFile) -> None:
    with zipfile.ZipFile(kit.path) as archive:
        sizes = {name: archive.getinfo(name).compress_size for name in archive.namelist()}
    files = table_of(kit.path)["files"]
    runtime = sum(sizes[f"blobs/{f['blob']}"] for f in files if f["flavour"])
    per_python = sum(sizes[f"blobs/{f['blob']}"] for f in files if ".so" in f["path"] and "/core." in f["path"])
    assert runtime > 5 << 20 and per_python > 100_000
    # sixty objects more than here, too: two candidates with eleven bins of three dims
    full = kit.bytes + (len(FLAVOURS) - 1) * runtime + (len(PYTHONS) - 1) * per_python + 60 * 40_000
    assert full < MAX_BYTES


def test_the_same_contents_make_the_same_file(
    kit: KitFile, candidate: KitCandidate, kit_cache: Path, tmp_path: Path
) -> None:
    contents = Contents(OP, RUN, KEY, (candidate,))
    again = build([contents], tmp_path / "again.pyz", kit_cache, pythons=(HERE,), flavours=(FLAVOUR,))
    assert again.path.read_bytes() == kit.path.read_bytes() and again.sha256 == kit.sha256


WORK = """
import importlib, json, sys
from pathlib import Path
lib, objects, cache = (Path(p) for p in sys.argv[1:4])
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
class Absent:  # as on a host that has torch only
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent)
sys.path.insert(0, str(lib))
for path in sorted((lib / "kgen").rglob("*.py")):
    name = ".".join(path.relative_to(lib).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(name)
import kgen, llguidance, tvm_ffi
from kgen.serve.launcher import Launcher
from kgen.serve.link import link
counts = []
for path in sorted(objects.glob("*.o")):
    counts.append(Launcher(link(path, path.stem, cache), "kgen_entry").counts())
found = [kgen.__file__, tvm_ffi.__file__, llguidance.__file__]
print(json.dumps([found, llguidance.__version__, counts, sorted(sys.modules)]))
""".replace("FORBIDDEN", repr(FORBIDDEN))


def unpacked(kit: Path, base: Path) -> Path:
    """What `python kit.pyz` unpacks, by the kit's own code."""
    with zipfile.ZipFile(kit) as archive:
        code, raw = archive.read("__main__.py"), archive.read("kit.json")
    boot: dict[str, Any] = {"__name__": "boot"}
    exec(compile(code, "boot", "exec"), boot)
    base.mkdir(exist_ok=True)
    return Path(boot["unpack"](kit, json.loads(raw), "d" * 64, FLAVOUR, base))


def test_an_unpacked_kit_loads_its_objects_with_nothing_but_torch_beside_it(kit: KitFile, tmp_path: Path) -> None:
    root = unpacked(kit.path, tmp_path)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    env = {**os.environ, "KGEN_CUTE_RUNTIME": str(root / "native" / FLAVOUR / "libcute_dsl_runtime.so")}
    work = WORK.replace("link(path, path.stem, cache)", "link(path, path.stem, cache, runtime)")
    work = work.replace(
        "counts = []", "from kgen.serve.runtime import find_runtime\nruntime = find_runtime()\ncounts = []"
    )
    command = [
        sys.executable,
        "-I",
        "-W",
        "ignore",
        "-c",
        work,
        str(root / "lib"),
        str(root / "objects"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    found, grammar, counts, modules = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(path).is_relative_to(root / "lib") for path in found)
    assert grammar == metadata.version("llguidance")
    assert counts == [{}, {}]
    assert not [m for m in FORBIDDEN if m in modules]


def test_it_is_unpacked_once_and_again_when_something_was_changed(light: KitFile, tmp_path: Path) -> None:
    base = tmp_path / "base"
    root = unpacked(light.path, base)
    target = next((root / "objects").glob("*.o"))
    marked = root / "cache"
    marked.mkdir()
    assert unpacked(light.path, base) == root and marked.exists()
    target.write_bytes(b"something else")
    assert unpacked(light.path, base) == root and not marked.exists()
    assert target.read_bytes() != b"something else"
    root.chmod(0o755)  # others could have written here
    assert unpacked(light.path, base) == root and stat.S_IMODE(root.stat().st_mode) == 0o700
    shutil.rmtree(root)
    root.symlink_to(tmp_path)
    assert unpacked(light.path, base) != root


def test_modules_in_a_kit_are_the_entries_import_closure() -> None:
    files = module_files()
    assert {"kgen/gates/kit_host.py", "kgen/gates/runner/decode_job.py", "kgen/serve/launch_counter.c"} <= set(files)
    planted = {"kgen/gates/builder/__init__.py", "kgen/gates/builder/defects.py"}  # which tile a planted defect scales
    others = set(files) - planted
    assert not [f for f in others if "/builder/" in f or "/cli/" in f or "/proposers/" in f or "/loop/" in f]


def test_data_that_a_package_needs_at_run_time_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "extra"
    package.mkdir()
    for name in ("__init__.py", "weights.safetensors", "helper.c", "log.jsonl", "page.md"):
        (package / name).write_bytes(b"# " + name.encode())
    monkeypatch.setattr(kgen, "__path__", [*kgen.__path__, str(tmp_path)])
    files = module_files(["kgen.extra"])
    wanted = ("__init__.py", "weights.safetensors", "helper.c")
    assert {f for f in files if "/extra/" in f} == {f"kgen/extra/{name}" for name in wanted}


def test_the_small_models_weights_are_carried_where_they_are() -> None:
    there = trained_weights().is_file()
    assert ("kgen/model/nano/weights.safetensors" in module_files()) is there


def test_llguidance_comes_from_its_wheel_where_its_list_of_files_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {p.path: p.data for p in llguidance_pieces(tmp_path)}
    assert {"lib/llguidance/__init__.py", "lib/llguidance/_tokenizer.py"} < set(whole)
    assert any(path.endswith(".abi3.so") for path in whole) and any(path.endswith("/LICENSE") for path in whole)
    assert not [p for p in whole if p.endswith(("/torch.py", "/numpy.py", "/hf.py", ".pyi", ".pyc"))]
    folder = tmp_path / "wheels" / f"llguidance-{metadata.version('llguidance')}-py{HERE}"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "llguidance.whl", "w") as wheel:  # as if pip had fetched it
        for path, data in whole.items():
            wheel.writestr(path.removeprefix("lib/"), data)
        wheel.writestr("llguidance/numpy.py", b"import numpy")
    monkeypatch.setattr(metadata.Distribution, "files", property(lambda self: None))
    assert {p.path: p.data for p in llguidance_pieces(tmp_path)} == whole


def test_nothing_to_carry_or_a_broken_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="nothing to carry"):
        build([Contents(OP, RUN, KEY, ())], tmp_path / "k", tmp_path)
    sound, broken = make(tmp_path, 1), make(tmp_path, 1, defect="tile_scale")
    with pytest.raises(KitError, match="no sound build"):
        build([Contents(OP, RUN, KEY, (KitCandidate("c" * 64, (broken,)),))], tmp_path / "k", tmp_path)
    sound.object.write_bytes(b"damaged")
    with pytest.raises(KitError, match="damaged"):
        build([Contents(OP, RUN, KEY, (KitCandidate("c" * 64, (sound,)),))], tmp_path / "k", tmp_path)


@pytest.mark.deep
def test_a_kit_for_all_pythons_and_flavours_is_built(candidate: KitCandidate, tmp_path: Path) -> None:
    made = build([Contents(OP, RUN, KEY, (candidate,))], tmp_path / "kit.pyz", tmp_path / "cache")
    assert made.bytes <= MAX_BYTES
    cores = [f for f in table_of(made.path)["files"] if "/core.cpython" in f["path"]]
    assert sorted(f["python"] for f in cores) == sorted(PYTHONS)
