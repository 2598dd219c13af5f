"""The stored form of the weights: one safetensors file with the keys of the decode model, and back.

Expert weights are MXFP4 (packed bytes and E8M0 scales), matrices and norms bf16, the few float32 vectors as they are.
Sizes and notes are in the header as text. Not here: the file format itself.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from kgen.contract.quant import mxfp4_pack, mxfp4_unpack
from kgen.model.nano import safetensors_file
from kgen.model.nano.shape import SHAPES, Shape
from kgen.model.nano.trainable import NanoModel

FORMAT = "kgen-nano-1"
_FLOAT32 = ("conv_w", "a_log", "dt_bias", "bias")
_PACKED = {"w13": "s13", "w2": "s2"}


def stored(model: NanoModel) -> dict[str, torch.Tensor]:
    """All tensors under their stored keys, on the CPU."""
    out: dict[str, torch.Tensor] = {}
    for key, value in model.state_dict().items():
        stem, _, leaf = key.rpartition(".")
        value = value.detach().cpu()
        if leaf in _PACKED:
            out[key], out[f"{stem}.{_PACKED[leaf]}"] = mxfp4_pack(value)
        else:
            out[key] = value.to(torch.float32 if leaf in _FLOAT32 else torch.bfloat16).contiguous()
    return out


def write(path: Path, model: NanoModel, notes: Mapping[str, str]) -> None:
    """Write a model's weights whole or not at all; its sizes and the notes go into the header."""
    safetensors_file.write(path, stored(model), {"format": FORMAT, **model.shape.text(), **notes})


def read(path: Path) -> tuple[dict[str, torch.Tensor], Shape, dict[str, str]]:
    """Tensors by key, the shape, and the header's text. ValueError if the file is cut short or holds other weights."""
    tensors, header = safetensors_file.read(path)
    if header.get("format") != FORMAT or header.get("name") not in SHAPES:
        raise ValueError(f"{path} holds no {FORMAT} weights: write one with kgen.model.nano.train")
    shape = SHAPES[header["name"]]
    if any(header.get(name) != value for name, value in shape.text().items()):
        raise ValueError(f"{path} was written for other sizes of {shape.name}: train it again")
    return tensors, shape, header


def load_into(model: NanoModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set the masters to stored values; packing them gives the same bytes. ValueError on missing or extra keys."""
    expected = stored(model)
    if expected.keys() != tensors.keys():
        odd = sorted(expected.keys() ^ tensors.keys())
        raise ValueError(f"weights do not fit {model.shape.name}: {len(odd)} keys differ, the first is {odd[0]}")
    for key, want in expected.items():
        if want.shape != tensors[key].shape or want.dtype != tensors[key].dtype:
            got = tensors[key]
            raise ValueError(f"{key} must be {want.dtype} {list(want.shape)}, got {got.dtype} {list(got.shape)}")
    masters = {}
    for key in model.state_dict():
        stem, _, leaf = key.rpartition(".")
        scales = tensors.get(f"{stem}.{_PACKED[leaf]}") if leaf in _PACKED else None
        masters[key] = tensors[key] if scales is None else mxfp4_unpack(tensors[key], scales, torch.float32)
    model.load_state_dict(masters)
