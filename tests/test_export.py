"""What `kgen export` writes can be loaded elsewhere: by the `kernels` package's own rules, and as an installed wheel.

The kernel here is support/negate.c, which runs on the CPU, so that link, load and call are the real ones.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.sets import ARCH, DIMS, OP, WIN, fill, make_case

import kgen
from kgen.cli import boundary
from kgen.cli.app import build
from kgen.export import NothingToExport, hf_kernels, wheel
from kgen.export.own_name import Finder
from kgen.export.part import part
from kgen.ops import REGISTRY
from kgen.promotion import Current, rollback, verify
from kgen.serve import Served
from kgen.store import KernelSet, SetPath
from kgen.store.kernelset import parse_problem

CONTRACT = REGISTRY.get(OP)
CURRENT = Current({OP: CONTRACT.contract_sha256(), "dense_mlp": REGISTRY.get("dense_mlp").contract_sha256()}, 1)
BIN = 16


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> KernelSet:
    """A set with a kernel of two ops; of the first, an older promotion serves nothing any more."""
    import tvm_ffi.libinfo

    folder = tmp_path_factory.mktemp("set")
    include = Path(tvm_ffi.__file__).parent / "include"
    source, out = Path(__file__).parent / "support" / "negate.c", folder / "negate.o"
    cc = shutil.which("cc") or pytest.skip("needs a C compiler")
    subprocess.run([cc, "-O1", "-fPIC", "-I", str(include), "-c", str(source), "-o", str(out)], check=True)
    contract, other = CONTRACT.contract_sha256(), CURRENT.op_contracts["dense_mlp"]
    cases = (
        make_case("older", {BIN: WIN}, op_contract=contract),
        make_case("negate", {BIN: WIN}, op_contract=contract, objects={BIN: out.read_bytes()}),
        make_case("another op", {1: WIN}, op="dense_mlp", op_contract=other),
    )
    return KernelSet(fill(folder / "set", *cases, current=CURRENT).path)


@pytest.fixture(scope="module")
def folder(kernels: KernelSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hf") / "published"
    hf_kernels(part(kernels, [OP]), CONTRACT, out)
    return out


def load_variant(variant: Path) -> ModuleType:
    """As `kernels.importer` does it: the variant's own file, as a module of the name that the metadata give."""
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.setenv("KGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KGEN_SET", raising=False)
    before, finders = set(sys.modules), list(sys.meta_path)
    yield load_variant(folder / "build" / "torch-cuda")
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        if name.startswith("_kgen_moe_shared"):
            del sys.modules[name]


def values(served: Any) -> dict[str, Any]:
    return {**CONTRACT.inputs(served.problem, "normal", 1, "cpu"), **served.outputs("cpu")}


def test_a_part_is_a_whole_set_of_what_serves_and_nothing_else(kernels: KernelSet, tmp_path: Path) -> None:
    chosen = part(kernels, [OP])
    for path, data in chosen.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert {parse_problem(key).op for key in chosen.keys} == {OP}
    assert [p.seq for p in chosen.manifest.promotions] == [2] and chosen.manifest.seq == kernels.manifest().seq
    assert verify(SetPath(tmp_path), CURRENT).ok
    assert len(part(kernels).keys) == len(chosen.keys) + 1


def test_what_serves_nowhere_is_not_exported(kernels: KernelSet, tmp_path: Path) -> None:
    with pytest.raises(NothingToExport, match="serves no kernel of attn_res"):
        part(kernels, [OP, "attn_res"])
    with pytest.raises(NothingToExport, match="serves no kernel of any op"):
        part(KernelSet(tmp_path / "none"))
    stale = fill(tmp_path / "stale", make_case())
    with pytest.raises(NothingToExport, match="under another contract of moe_shared"):
        part(KernelSet(stale.path))
    gone = fill(tmp_path / "gone", make_case(op_contract=CONTRACT.contract_sha256()), current=CURRENT)
    rollback(gone, OP)
    with pytest.raises(NothingToExport, match="serves no kernel"):
        part(KernelSet(gone.path), [OP])


def test_a_loaded_kernel_runs_the_promoted_object(loaded: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    below = sys.modules[f"{loaded.__name__}.kgen.serve.load"]
    monkeypatch.setattr(below, "device_capability", lambda: ARCH.rstrip("a"))  # the object itself runs on the CPU
    served = loaded.load(DIMS, 12)
    assert served.promoted and served.problem.tokens == BIN, served.reason
    given = values(served)
    assert torch.equal(served(given)["y"], -given["m"])


def test_without_such_a_gpu_a_loaded_kernel_is_the_stock_op(loaded: ModuleType) -> None:
    served = loaded.load(DIMS, 12)
    assert not served.promoted and "no CUDA GPU" in served.reason
    given = values(served)
    assert torch.equal(served(given)["y"], CONTRACT.stock(CONTRACT.problem(DIMS, BIN, ARCH))(given)["y"])


def test_a_loaded_kernel_is_apart_from_an_installed_kgen(loaded: ModuleType) -> None:
    assert loaded.Served is not Served and issubclass(type(loaded.load(DIMS, 1)), loaded.Served)
    mine = {n: m for n, m in sys.modules.items() if n.startswith(f"{loaded.__name__}.kgen.")}
    strange = {n: v.__module__ for n, m in mine.items() for v in vars(m).values() if _ours(v)}
    assert len(mine) > 30 and strange == {}
    contract = mine[f"{loaded.__name__}.kgen.ops"].REGISTRY.get(OP).contract_sha256()
    assert contract == CONTRACT.contract_sha256()  # else every kernel would be doubted


def _ours(value: object) -> bool:
    return isinstance(value, type) and value.__module__.startswith("kgen.")


def test_it_says_what_it_serves(loaded: ModuleType, kernels: KernelSet) -> None:
    assert loaded.points() == list(part(kernels, [OP]).keys) == [CONTRACT.problem(DIMS, BIN, ARCH).key]
    assert (loaded.OP, loaded.ARCHS) == (OP, (ARCH,))


def test_metadata_name_the_backend_and_every_file(folder: Path) -> None:
    for backend, more in (("cuda", {"archs": ["9.0a"]}), ("cpu", {})):
        variant = folder / "build" / f"torch-{backend}"
        said = json.loads((variant / "metadata.json").read_text())
        assert said["backend"] == {"type": backend, **more} and said["name"] == "kgen-moe-shared"
        there = {
            p.relative_to(variant).as_posix() for p in variant.rglob("*") if p.is_file() and "pycache" not in str(p)
        }
        assert set(said["digest"]["files"]) == there - {"metadata.json"}


def test_installing_the_finder_twice_changes_nothing(loaded: ModuleType) -> None:
    from kgen.export.own_name import install

    install(loaded.__name__)
    assert sum(isinstance(f, Finder) and f.name == loaded.__name__ for f in sys.meta_path) <= 1


def test_an_exported_folder_is_replaced_and_no_other_folder(folder: Path, kernels: KernelSet, tmp_path: Path) -> None:
    chosen = part(kernels, [OP])
    again = shutil.copytree(folder, tmp_path / "again")
    (again / "build" / "torch-cuda" / "left.py").touch()
    hf_kernels(chosen, CONTRACT, again)
    assert not (again / "build" / "torch-cuda" / "left.py").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(FileExistsError):
        hf_kernels(chosen, CONTRACT, tmp_path / "mine")


def test_the_kernels_package_loads_the_folder(folder: Path) -> None:
    package = pytest.importorskip("kernels", reason="pip install 'kgen[hf]'")
    module = package.get_local_kernel(folder, backend="cpu")
    assert module.points() and module.load(DIMS, 1).problem.op == OP


def test_the_wheel_installs_alone_and_lists_its_ops_without_torch(kernels: KernelSet, tmp_path: Path) -> None:
    made = wheel(part(kernels), tmp_path)
    assert wheel(part(kernels), tmp_path / "again").path.read_bytes() == made.path.read_bytes()
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "-q", "--no-deps", "--no-index", str(made.path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        [python, "-I", "-c", "import kgen\nfrom kgen.store.served import main\nprint(kgen.__version__)\nmain([])"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said == [kgen.__version__, f"dense_mlp {ARCH} {DIMS}: tokens 1", f"{OP} {ARCH} {DIMS}: tokens {BIN}"]


def test_the_wheel_carries_what_serves_and_the_plugin_but_no_gates(kernels: KernelSet, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(part(kernels), tmp_path).path) as archive:
        names = archive.namelist()
        info = next(n for n in names if n.endswith("entry_points.txt"))
        plugin = archive.read(info).decode()
        metadata = archive.read(info.replace("entry_points.txt", "METADATA")).decode()
    folders = {n.split("/")[1] for n in names if n.startswith("kgen/")}
    assert folders & {"gates", "cli", "loop", "proposers", "promotion"} == set()
    assert "kgen/serve/vllm/model.py" in names and "kgen.serve.vllm:register" in plugin
    needs = {line.split()[1].split(">")[0] for line in metadata.splitlines() if line.startswith("Requires-Dist")}
    assert {n.split("<")[0] for n in needs} == {"torch", "nvidia-cutlass-dsl", "apache-tvm-ffi"}


def test_the_command_writes_both_forms(kernels: KernelSet, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app, place = build(), ["--set", str(kernels.root)]
    assert boundary.run(app, ["export", OP, *place, "--json"]) == boundary.OK
    assert json.loads(capsys.readouterr().out)["points"] == 1 and (home / "kgen-moe-shared" / "build").is_dir()
    assert boundary.run(app, ["export", "--format", "wheel", "--out", "w", *place]) == boundary.OK
    assert len(list((home / "w").glob("kgen_serve-*.whl"))) == 1
    assert "in place of kgen" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["export"], boundary.USAGE, "takes exactly one op"),
        (["export", "moe_shared", "--format", "zip"], boundary.USAGE, "known: hf-kernels, wheel"),
        (["export", "moe_shared"], boundary.FAILED, "kgen promote puts one there"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, line: str
) -> None:
    assert boundary.run(build(), arguments) == code
    said = capsys.readouterr().err.strip()
    assert line in said and "\n" not in said
