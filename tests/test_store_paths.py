"""Where kgen keeps things."""

import shutil
from pathlib import Path

import pytest

from kgen.store import StoreError
from kgen.store.paths import (
    cache_path,
    checkout,
    package_checkout,
    runs_path,
    serving_sets,
    set_path,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder that looks like a source tree of ours."""
    root = tmp_path / "tree"
    for name in ("pipeline/store", "generated_kernels", "runs"):
        (root / name).mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_inside_a_checkout_its_own_folders_are_used(tree: Path) -> None:
    for cwd in (tree, tree / "pipeline" / "store"):
        assert checkout(cwd) == tree
        assert set_path(cwd=cwd, env={}).path == tree / "generated_kernels"
        assert runs_path(cwd=cwd, env={}) == tree / "runs"


def test_another_project_with_the_same_folders_is_no_checkout(tree: Path) -> None:
    (tree / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert checkout(tree) is None
    (tree / "pyproject.toml").write_text("not [ toml")
    assert checkout(tree) is None


def test_elsewhere_the_user_data_folder_is_used(tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert set_path(cwd=tmp_path, env=env).path == tmp_path / "data/kgen/generated_kernels"
    assert runs_path(cwd=tmp_path, env=env) == tmp_path / "data/kgen/runs"
    assert cache_path(env) == tmp_path / "cache/kgen"


def test_relative_xdg_values_are_ignored(tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": "relative", "XDG_CACHE_HOME": "relative"}
    assert runs_path(cwd=tmp_path, env=env) == Path.home() / ".local/share/kgen/runs"
    assert cache_path(env) == Path.home() / ".cache/kgen"


def test_explicit_wins_over_environment_wins_over_checkout(tree: Path, tmp_path: Path) -> None:
    env = {"KGEN_SET": str(tmp_path / "s"), "KGEN_RUNS": str(tmp_path / "r"), "KGEN_CACHE": str(tmp_path / "c")}
    assert set_path(cwd=tree, env=env).path == tmp_path / "s"
    assert set_path(tmp_path / "x", cwd=tree, env=env).path == tmp_path / "x"
    assert runs_path(cwd=tree, env=env) == tmp_path / "r"
    assert runs_path(tmp_path / "y", cwd=tree, env=env) == tmp_path / "y"
    assert cache_path(env) == tmp_path / "c"


@pytest.mark.parametrize("how", ["explicit", "environment"])
def test_builtin_is_read_only(how: str, tmp_path: Path) -> None:
    found = (
        set_path("builtin", tmp_path, {}) if how == "explicit" else set_path(None, tmp_path, {"KGEN_SET": "builtin"})
    )
    assert not found.writable and found.path.name == "generated_kernels"
    with pytest.raises(StoreError, match="read-only"):
        found.require_writable()


def test_serving_never_takes_kernels_from_the_working_folder(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    places = [s.path for s in serving_sets(env={"XDG_DATA_HOME": str(tmp_path)})]
    assert tree / "generated_kernels" not in places
    own = package_checkout()
    if own is None:
        assert places[0] == tmp_path / "kgen/generated_kernels"
    else:
        assert places[0] == own / "generated_kernels"


def test_serving_looks_only_into_an_explicit_set(tmp_path: Path) -> None:
    assert [s.path for s in serving_sets(tmp_path, {})] == [tmp_path]
    assert [s.path for s in serving_sets(None, {"KGEN_SET": str(tmp_path)})] == [tmp_path]
