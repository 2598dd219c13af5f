"""What `pip install` leaves: one package `kgen`, its data, its command, and nothing with a generic name.

Wheels are built from a copy of the tree without build isolation, so nothing is downloaded.
"""

import importlib.util
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from support.checkout import PACKAGES, ROOT, copy_tree

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP_LEVEL = ("pipeline", "gates", "prompts", "generated_kernels", "runs", "tests", "docs")


def pip(*arguments: str, environment: Path | None = None) -> None:
    """Run this environment's pip, also for another one that has none of its own."""
    target = ["--python", str(environment / "bin" / "python")] if environment else []
    command = [sys.executable, "-m", "pip", *target, "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = copy_tree(folder / "tree")
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(tree))
    return next(folder.glob("kgen-*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel installed; its dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=False)
    pip("install", "-q", "--no-deps", str(wheel), environment=folder)
    _use_our_packages(folder)
    return folder


def _use_our_packages(environment: Path) -> None:
    site = next(environment.glob("lib/python*/site-packages"))
    others = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    (site / "zz_dependencies.pth").write_text("".join(f"import site; site.addsitedir({p!r})\n" for p in others))


def run(environment: Path, cwd: Path, *command: str) -> str:
    """stdout of a command of the environment, outside the checkout."""
    clean = {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "HOME": str(cwd),
        "XDG_DATA_HOME": str(cwd / "data"),
    }
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_nothing_generic_reaches_site_packages(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert tops == {"kgen", f"kgen-{_version()}.dist-info"}


def _version() -> str:
    import kgen

    return kgen.__version__


def test_the_listed_packages_are_the_folders_that_hold_modules() -> None:
    folders = {"kgen": "pipeline", **PACKAGES}
    found = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for package, folder in folders.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(found) == PYPROJECT["tool"]["setuptools"]["packages"]


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {
        path.parent.relative_to(ROOT)
        for folder in ("pipeline", "gates", "prompts")
        for path in (ROOT / folder).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert not bare


@pytest.mark.parametrize(
    ("folder", "inside"),
    [("pipeline", "kgen"), *((folder, name.replace(".", "/")) for name, folder in PACKAGES.items())],
)
def test_every_file_of_a_package_is_in_the_wheel_and_no_other(
    wheel: Path, names: set[str], folder: str, inside: str
) -> None:
    source = wheel.parent / "tree" / folder
    kept = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()}
    others = tuple(f"{name.replace('.', '/')}/" for name in PACKAGES) if folder == "pipeline" else ()
    packed = {
        n.removeprefix(f"{inside}/") for n in names if n.startswith(f"{inside}/") and not n.startswith(others or "-")
    }
    assert kept and packed == kept


def test_the_installed_command_runs_outside_the_checkout(environment: Path, tmp_path: Path) -> None:
    assert "propose" in run(environment, tmp_path, "kgen", "--help")


def test_the_installed_package_reads_its_own_data(environment: Path, tmp_path: Path) -> None:
    script = (
        "import importlib.resources as r, kgen, pathlib, sys\n"
        "assert pathlib.Path(kgen.__file__).is_relative_to(sys.prefix), kgen.__file__\n"
        "assert r.files('kgen.prompts').joinpath('guide.md').read_text()\n"
        "assert r.files('kgen.serve').joinpath('launch_counter.c').read_text()\n"
        "assert r.files('kgen.gates.audit').joinpath('recorder.c').read_text()\n"
        "from kgen.store.paths import builtin_set, runs_path, set_path\n"
        "assert builtin_set().path.is_relative_to(sys.prefix) and not builtin_set().writable\n"
        "print(set_path().path, runs_path())\n"
    )
    said = run(environment, tmp_path, str(environment / "bin" / "python"), "-I", "-c", script)
    data = tmp_path / "data" / "kgen"
    assert said.split() == [str(data / "generated_kernels"), str(data / "runs")]


def test_an_editable_install_sees_new_files_and_nothing_generic(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    # with --target pip leaves this environment's own kgen alone
    pip("install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), "-e", str(tree))
    (tree / "pipeline" / "store" / "brand_new.py").write_text("NEW = 1\n")
    script = (
        "import importlib.util as u, kgen.gates, kgen.prompts, kgen.store.brand_new as n\n"
        f"print(n.NEW, [x for x in {TOP_LEVEL!r} if u.find_spec(x)])\n"
    )
    python = str(folder / "bin" / "python")
    assert run(folder, tmp_path, python, "-I", "-c", script).strip() == "1 []"


@pytest.mark.parametrize("name", [n for n in TOP_LEVEL if n != "tests"])  # that name pytest itself makes
def test_the_checkout_itself_is_not_importable(name: str) -> None:
    # `import gates` beside kgen.gates would give two classes of each name, and silent isinstance failures
    assert importlib.util.find_spec(name) is None
