"""Content-addressed blobs and keyed results: damage counts as absence."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgen.records import sha256_bytes
from kgen.store import Blobs, IntegrityError, Results, StoreError
from kgen.store.cache import LOOSE, objects_in

KEY = {"candidate": "a" * 64, "problem": "op/dims/t1/sm_90a", "contract": 1}


def test_blob_comes_back_by_its_hash(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    sha256 = blobs.put(b"object", ".o")
    assert sha256 == sha256_bytes(b"object")
    assert blobs.get(sha256, ".o") == b"object"
    assert blobs.find(sha256, ".o") == tmp_path / f"{sha256}.o"
    assert blobs.find(sha256, ".ptx") is None


@pytest.mark.parametrize("damage", [b"", b"objecu", b"object and more"])
def test_damaged_blob_is_absent_and_can_be_stored_again(tmp_path: Path, damage: bytes) -> None:
    blobs = Blobs(tmp_path)
    sha256 = blobs.put(b"object")
    blobs.where(sha256).write_bytes(damage)
    with pytest.raises(IntegrityError, match="damaged"):
        blobs.get(sha256)
    assert blobs.find(sha256) is None
    with pytest.raises(IntegrityError, match="missing"):
        blobs.get(sha256)
    assert blobs.put(b"object") == sha256
    assert blobs.get(sha256) == b"object"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_blob_name_must_be_a_hash(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        Blobs(tmp_path).get(name)


def test_result_comes_back_under_the_same_key_only(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert results.get(KEY) is None
    results.put(KEY, {"status": "pass", "n": [1, 2.5, None]})
    assert results.get(dict(reversed(KEY.items()))) == {"status": "pass", "n": [1, 2.5, None]}
    assert results.get({**KEY, "contract": 2}) is None


def test_result_of_another_key_in_the_same_place_is_absent(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.put(KEY, "pass")
    other = {**KEY, "contract": 2}
    results.where(other).parent.mkdir(exist_ok=True)
    results.where(KEY).rename(results.where(other))
    assert results.get(other) is None
    assert not results.where(other).exists()


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_changes_a_result(tmp_path_factory: pytest.TempPathFactory, position: int, bit: int) -> None:
    results = Results(tmp_path_factory.mktemp("cache"))
    results.put(KEY, {"status": "pass", "n": 12})
    path = results.where(KEY)
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    assert results.get(KEY) is None


def test_what_is_written_loosely_replaces_the_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "there"
    for data in (b"first and longer", b"second", b""):
        LOOSE.write(path, data)
        assert path.read_bytes() == data
    assert [p.name for p in path.parent.iterdir()] == ["there"]


def test_a_loose_write_that_is_refused_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(StoreError, match=str(taken)):
        LOOSE.write(taken, b"bytes")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        LOOSE.write(tmp_path / "file" / "below", b"bytes")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken"]


@pytest.mark.parametrize("left", [b"", b"obj"])
def test_what_a_power_cut_leaves_of_a_loose_blob_is_absent(tmp_path: Path, left: bytes) -> None:
    blobs = objects_in(tmp_path, LOOSE)
    sha256 = blobs.put(b"object", ".ptx")
    blobs.where(sha256, ".ptx").write_bytes(left)
    assert blobs.find(sha256, ".ptx") is None
    assert blobs.put(b"object", ".ptx") == sha256 and blobs.find(sha256, ".ptx") is not None
