"""A kernel set is read as it was written, or not at all."""

import json
import lzma
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sets import TIE, WIN, fill, make_case

from kgen.records import Manifest
from kgen.store import IntegrityError, KernelSet, parse_problem
from kgen.store.kernelset import MAX_OBJECT_BYTES, compress, manifest_bytes


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with two promotions; tests do not change it."""
    root = tmp_path_factory.mktemp("stored") / "set"
    fill(root, make_case("one", {1: WIN, 8: TIE}), make_case("two", {1: WIN}))
    return root


@pytest.fixture
def root(stored: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy to damage."""
    yield Path(shutil.copytree(stored, tmp_path / "set"))


def test_everything_comes_back(stored: Path) -> None:
    kernels = KernelSet(stored)
    first = kernels.manifest().promotions[0]
    case = make_case("one", {1: WIN, 8: TIE})
    assert kernels.source(first) == case.candidate.source
    assert kernels.evidence(first) == case.evidence
    assert {b.problem.key for b in kernels.builds(first)} == set(first.objects)
    assert kernels.raw(first) == case.raw
    assert [kernels.object(sha) for sha in first.objects.values()] == [case.objects[s] for s in first.objects.values()]


def test_a_folder_without_manifest_is_an_empty_set(tmp_path: Path) -> None:
    assert KernelSet(tmp_path / "none").manifest() == Manifest()
    assert not KernelSet(tmp_path).exists()


@settings(max_examples=300)
@given(position=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_every_flipped_bit_of_the_manifest_is_found(stored: Path, position: int, bit: int) -> None:
    data = bytearray((stored / "manifest.json").read_bytes())
    data[position % len(data)] ^= 1 << bit
    flipped = stored.parent / "flipped"
    flipped.mkdir(exist_ok=True)
    (flipped / "manifest.json").write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        KernelSet(flipped).manifest()
    assert "\n" not in str(caught.value)


@settings(max_examples=200)
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["schema", "seq", "promotions", "champions", "history", "checksum"]),
                    inner,
                    max_size=6,
                )
            ),
        ).map(lambda v: json.dumps({"schema": "kgen.manifest/1", **v} if isinstance(v, dict) else v).encode()),
    )
)
def test_any_bytes_as_manifest_give_an_integrity_error_and_nothing_else(stored: Path, data: bytes) -> None:
    folder = stored.parent / "fuzz"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(data)
    with pytest.raises(IntegrityError):
        KernelSet(folder).manifest()


def test_a_newer_schema_asks_for_an_upgrade(root: Path) -> None:
    path = root / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"kgen.manifest/1", b"kgen.manifest/2"))
    with pytest.raises(IntegrityError, match="upgrade kgen"):
        KernelSet(root).manifest()


@pytest.mark.parametrize("kind", ["source", "evidence", "builds", "raw"])
@pytest.mark.parametrize("damage", ["missing", "changed", "folder"])
def test_missing_or_changed_files_are_named(root: Path, kind: str, damage: str) -> None:
    kernels = KernelSet(root)
    promotion = kernels.manifest().promotions[0]
    path = root / getattr(promotion, kind)
    data = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(data[:-1] + b"~")
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(IntegrityError, match=path.name.replace(".", r"\.")):
        getattr(kernels, kind)(promotion)


@pytest.mark.parametrize(
    "data", [b"", b"not xz", compress(b"other"), compress(b"x") + b"trailing", compress(b"x")[:-3]]
)
def test_a_damaged_object_is_never_handed_out(root: Path, data: bytes) -> None:
    kernels = KernelSet(root)
    sha256 = next(iter(kernels.manifest().promotions[0].objects.values()))
    kernels.object_path(sha256).write_bytes(data)
    with pytest.raises(IntegrityError):
        kernels.object(sha256)


def test_a_decompression_bomb_stops_at_the_limit(root: Path) -> None:
    kernels = KernelSet(root)
    sha256 = next(iter(kernels.manifest().promotions[0].objects.values()))
    kernels.object_path(sha256).write_bytes(lzma.compress(bytes(4 * MAX_OBJECT_BYTES), preset=1))
    with pytest.raises(IntegrityError, match="more than"):
        kernels.object(sha256)


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside.py", "moe_shared/../../x", "a\\b", "", "x\0y"])
def test_a_manifest_cannot_name_files_outside_the_set(stored: Path, name: str) -> None:
    kernels = KernelSet(stored)
    evil = replace(kernels.manifest().promotions[0], source=name)
    with pytest.raises(IntegrityError, match="outside the set"):
        kernels.source(evil)


def test_a_sealed_manifest_that_contradicts_itself_is_refused(root: Path) -> None:
    manifest = KernelSet(root).manifest()
    first, second = manifest.promotions
    key = next(iter(manifest.champions))
    broken = {
        "seq too small": replace(manifest, seq=1),
        "same number twice": replace(manifest, promotions=(first, replace(second, seq=1))),
        "champion that does not exist": replace(manifest, champions={key: 9}),
        "champion of a point it does not serve": replace(manifest, champions={"moe_shared/nano/t2/sm_90a": 1}),
        "another arch": replace(manifest, promotions=(replace(first, arch="sm_103a"), second)),
        "label left": replace(
            manifest, promotions=(replace(first, labels=dict.fromkeys(first.labels, "left")), second)
        ),
        "no launches": replace(manifest, promotions=(replace(first, launches={}), second)),
        "unknown trust": replace(manifest, promotions=(replace(first, trust="me"), second)),
    }
    for what, wrong in broken.items():
        (root / "manifest.json").write_bytes(manifest_bytes(wrong))
        with pytest.raises(IntegrityError, match="contradicts itself"):
            pytest.fail(f"{what} was accepted: {KernelSet(root).manifest().seq}")


@pytest.mark.parametrize("key", ["moe_shared/nano/t1/sm_90a", "attn_res/nano/t64/sm_90a/variant=final"])
def test_problem_keys_are_read_back(key: str) -> None:
    assert parse_problem(key).key == key


@pytest.mark.parametrize("key", ["", "a/b/c", "a/b/8/sm_90a", "a/b/t-1/sm_90a", "a/b/t1/sm/x", "a/b/t01/sm_90a"])
def test_other_text_is_no_problem_key(key: str) -> None:
    with pytest.raises(ValueError, match="not a problem key"):
        parse_problem(key)
