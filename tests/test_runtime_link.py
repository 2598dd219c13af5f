"""Linking by hash into a cache, with the real runtime libraries."""

import subprocess
from pathlib import Path

import pytest

from kgen.serve import link as link_module
from kgen.serve import runtime as runtime_module
from kgen.serve.link import LinkError, file_sha256, link
from kgen.serve.runtime import RuntimeMissing, find_runtime, installed_flavours
from kgen.store.errors import IntegrityError

NEGATE = Path(__file__).parent / "support" / "negate.c"


@pytest.fixture
def negate(tmp_path: Path) -> Path:
    includes = [f"-I{folder / 'include'}" for folder in runtime_module.package_folders("tvm_ffi")]
    subprocess.run(["cc", "-O1", "-fPIC", "-c", *includes, "-o", str(tmp_path / "k.o"), str(NEGATE)], check=True)
    return tmp_path / "k.o"


@pytest.fixture
def fresh_runtime(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    find_runtime.cache_clear()
    return monkeypatch


def test_the_runtime_that_is_installed_is_found() -> None:
    find_runtime.cache_clear()
    runtime = find_runtime()
    assert runtime.flavour in installed_flavours()
    assert runtime.cute_library.is_file() and runtime.tvm_ffi_library.is_file()


def test_a_named_runtime_library_wins(fresh_runtime: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "cu13" / "lib" / "libcute_dsl_runtime.so"
    library.parent.mkdir(parents=True)
    library.touch()
    fresh_runtime.setenv(runtime_module.ENV_LIBRARY, str(library))
    assert (find_runtime().flavour, find_runtime().cute_library) == ("cu13", library)
    find_runtime.cache_clear()


def test_a_runtime_library_that_is_not_there_is_one_clear_line(fresh_runtime: pytest.MonkeyPatch) -> None:
    fresh_runtime.setenv(runtime_module.ENV_LIBRARY, "/nowhere/lib.so")
    with pytest.raises(RuntimeMissing, match="is not a file; unset it") as caught:
        find_runtime()
    assert "\n" not in str(caught.value)


def test_without_the_package_the_error_names_what_to_install(fresh_runtime: pytest.MonkeyPatch) -> None:
    fresh_runtime.setattr(runtime_module, "installed_flavours", dict)
    with pytest.raises(RuntimeMissing, match="pip install nvidia-cutlass-dsl"):
        find_runtime()


def test_an_object_is_linked_once(negate: Path, tmp_path: Path) -> None:
    first = link(negate, file_sha256(negate), tmp_path / "cache", find_runtime())
    stamp = first.stat().st_mtime_ns
    assert link(negate, file_sha256(negate), tmp_path / "cache", find_runtime()) == first
    assert first.stat().st_mtime_ns == stamp
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [first.parent.name], "no leftovers beside the entry"


def test_another_hash_is_refused(negate: Path, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="has sha256"):
        link(negate, "0" * 64, tmp_path / "cache", find_runtime())
    assert not (tmp_path / "cache").exists()


def test_an_altered_cached_library_is_refused(negate: Path, tmp_path: Path) -> None:
    library = link(negate, file_sha256(negate), tmp_path / "cache", find_runtime())
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="delete it"):
        link(negate, file_sha256(negate), tmp_path / "cache", find_runtime())


def test_without_a_compiler_the_error_says_so(negate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeMissing, match="install gcc"):
        link(negate, file_sha256(negate), tmp_path / "cache", find_runtime())


def test_an_object_that_needs_more_than_the_runtime_offers_does_not_link(tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text("int nobody_has_this(void); int f(void) { return nobody_has_this(); }\n")
    subprocess.run(["cc", "-fPIC", "-c", "-o", str(tmp_path / "k.o"), str(tmp_path / "k.c")], check=True)
    with pytest.raises(LinkError, match="nobody_has_this"):
        link(tmp_path / "k.o", file_sha256(tmp_path / "k.o"), tmp_path / "cache", find_runtime())
    assert list((tmp_path / "cache").iterdir()) == []
