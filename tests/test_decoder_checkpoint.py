"""A bad checkpoint is refused with one line that names everything wrong with it; a good one comes back bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.decoders import weights

from kgen.model.decoder.config import config
from kgen.model.decoder.weights import CheckpointError, checksum, load
from kgen.model.nano import safetensors_file
from kgen.ops import REGISTRY

NANO = config("nano-random")
Table = dict[str, torch.Tensor]


def written(folder: Path, tensors: Table) -> Path:
    path = folder / "weights.safetensors"
    safetensors_file.write(path, tensors, {})
    return path


def test_a_good_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = written(tmp_path, dict(weights().tensors))
    assert checksum(load(path, NANO, REGISTRY, "cpu")) == checksum(weights())


def _missing(t: Table) -> None:
    del t["layers.3.mla.w_qb"], t["lm_head"]


def _shape(t: Table) -> None:
    t["layers.1.moe.w13"] = t["layers.1.moe.w13"][:, :, :-1].contiguous()


def _dtype(t: Table) -> None:
    t["layers.0.kda.a_log"] = t["layers.0.kda.a_log"].bfloat16()


def _nan(t: Table) -> None:
    t["embed"] = t["embed"].clone()
    t["embed"][7, 3] = float("nan")


def _unknown(t: Table) -> None:
    t["layers.8.kda.w_in"] = torch.zeros(1)


CASES: dict[str, tuple[Callable[[Table], None], tuple[str, ...]]] = {
    "missing": (_missing, ("layers.3.mla.w_qb is missing", "lm_head is missing")),
    "shape": (_shape, ("layers.1.moe.w13 is uint8[16, 128, 63], must be uint8[16, 128, 64]",)),
    "dtype": (_dtype, ("layers.0.kda.a_log is bfloat16[2], must be float32[2]",)),
    "not finite": (_nan, ("embed has values that are not finite",)),
    "unknown": (_unknown, ("layers.8.kda.w_in is unknown",)),
}


@pytest.mark.parametrize("case", CASES)
def test_one_fault_is_named(case: str, tmp_path: Path) -> None:
    spoil, said = CASES[case]
    tensors = dict(weights().tensors)
    spoil(tensors)
    with pytest.raises(CheckpointError) as caught:
        load(written(tmp_path, tensors), NANO, REGISTRY, "cpu")
    assert all(text in str(caught.value) for text in said) and "\n" not in str(caught.value)


def test_all_faults_are_named_in_one_line(tmp_path: Path) -> None:
    tensors = dict(weights().tensors)
    for spoil, _ in CASES.values():
        spoil(tensors)
    with pytest.raises(CheckpointError) as caught:
        load(written(tmp_path, tensors), NANO, REGISTRY, "cpu")
    assert all(text in str(caught.value) for _, said in CASES.values() for text in said)


def test_many_faults_are_counted_beyond_the_first(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"embed is missing.* and \d+ more"):
        load(written(tmp_path, {"x": torch.zeros(1)}), NANO, REGISTRY, "cpu")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused_in_one_line(kept: int, tmp_path: Path) -> None:
    path = written(tmp_path, dict(weights().tensors))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors") as caught:
        load(path, NANO, REGISTRY, "cpu")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path / "none.safetensors", NANO, REGISTRY, "cpu")
