"""Binary files: objects, cubins, tensor maps, weights; and what the launch recorder prints of an object."""

import functools
import json
import struct

import torch
from support.checkout import ROOT

from fuzz.guard import own_files, scratch
from fuzz.target import Target, one_line
from kgen.gates.audit import cubin as cubins
from kgen.gates.audit import limits
from kgen.gates.audit import object as objects
from kgen.gates.audit.elf import ElfError
from kgen.gates.audit.object import AuditError
from kgen.gates.audit.recorder import Argument, decode
from kgen.gates.ptx.matrix import tensormap
from kgen.model.decoder.config import CONFIGS
from kgen.model.decoder.weights import CheckpointError, check
from kgen.model.nano import safetensors_file
from kgen.ops import REGISTRY
from kgen.records import Launch, canonical_json, from_json, to_json
from kgen.store.kernelset import decompress

OBJECTS = ROOT / "generated_kernels" / "objects"
ARCH = "sm_90a"
ARGUMENTS = (Argument("x", "bf16", (8, 64)), Argument("y", "f32", (8, 64)), Argument("n", "i32", None, 3.0))
LINES = (
    b'{"call": 0}',
    b'{"done": 0}',
    b'"grid": [1, 1]',
    b"2147483647",
    b"-1",
    b"1.5",
    b'"' + b"00" * 16 + b'"',
    b"[]",
)


@functools.cache
def _objects() -> tuple[bytes, ...]:
    paths = sorted(OBJECTS.glob("*.xz"), key=lambda path: path.stat().st_size)
    return tuple(decompress(path.read_bytes(), 16 << 20, path) for path in (paths[0], paths[-1]))


def _object(data: bytes) -> None:
    try:
        cubin = objects.check(data, ARCH)
    except AuditError as error:
        one_line(str(error))
        assert error.code.startswith("audit.")
        return
    _facts(cubin)


def _cubin(data: bytes) -> None:
    try:
        cubin = cubins.read(data)
    except ElfError as error:
        one_line(str(error))
        return
    _facts(cubin)


def _facts(cubin: cubins.Cubin) -> None:
    assert cubin.kernels
    for kernel in cubin.kernels:
        canonical_json(to_json(kernel))
        one_line(kernel.name, 4096)
        assert kernel.registers >= 0 and kernel.max_threads >= 0 and kernel.static_smem >= 0


def _lines() -> list[bytes]:
    """Every kernel of the cubin once, twice over."""
    args = [(1 << 40).to_bytes(8, "little").hex(), ((2 << 40) + 64).to_bytes(128, "little").hex(), "03000000"]
    body = {"grid": [2, 1, 1], "block": [64, 1, 1], "smem": 16, "args": args}
    body["attributes"] = [[6, "01" + "00" * 15], [4, "02000000" + "01000000" * 3]]
    call = [{"launch": {"kernel": kernel.name, **body}} for kernel in _seed_cubin().kernels]
    said = [{"call": 0}, *call, {"call": 1}, *call, {"done": 0}]
    return ["\n".join(json.dumps(line) for line in said).encode(), json.dumps(said).encode()]


def _recorded(data: bytes) -> None:
    """Lines, or a list of them, so that both ways of changing the text find their way in."""
    try:
        whole = json.loads(data)
        lines = [line for line in whole if isinstance(line, dict)] if isinstance(whole, list) else []
    except (ValueError, RecursionError):
        lines = []
        for line in data.split(b"\n"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            lines += [value] if isinstance(value, dict) else []
    try:
        launches = decode(lines, ARGUMENTS)
        limits.check(_seed_cubin(), launches)
    except AuditError as error:
        one_line(str(error))
        return
    assert launches == tuple(from_json(Launch, to_json(launch)) for launch in launches), "a launch of other types"


@functools.cache
def _seed_cubin() -> cubins.Cubin:
    image, data = cubins.embedded(_objects()[0])[0]
    return cubins.read(data, image)


def _map_seeds() -> list[bytes]:
    stored = json.loads((ROOT / "tests" / "data" / "ptx_tensor_maps.json").read_bytes())
    text = json.dumps(stored)
    found = [
        bytes.fromhex(word) for word in text.split('"') if len(word) == 256 and set(word) <= set("0123456789abcdef")
    ]
    return found[:20] or [bytes(128)]


def _map(data: bytes) -> None:
    try:
        made = tensormap.decode(data)
    except ValueError as error:
        one_line(str(error))
        return
    assert all(n > 0 for n in (*made.sizes, *made.box)) and len(made.sizes) == len(made.box) <= 5


def _weights_seeds() -> list[bytes]:
    path = scratch() / "seed.safetensors"
    tensors = {"embed": torch.arange(8, dtype=torch.float32).view(2, 4), "b": torch.zeros(3, dtype=torch.bfloat16)}
    with own_files():
        safetensors_file.write(path, tensors, {"kind": "fuzz"})
    whole = path.read_bytes()
    empty = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    return [whole, struct.pack("<Q", len(empty)) + empty]


def _weights(data: bytes) -> None:
    """The header's length is put right where it is the JSON that was changed: else nothing behind it is ever read."""
    end = data.find(b"}}", 8) + 2
    if data[8:9] == b"{" and end > 8 and data[:1] != b"\xff":
        data = struct.pack("<Q", end - 8) + data[8:]
    path = scratch() / "w.safetensors"
    with own_files():
        path.write_bytes(data)
    try:
        tensors, notes = safetensors_file.read(path)
        check(tensors, CONFIGS["nano"], REGISTRY, "w")
    except CheckpointError as error:
        one_line(str(error))
        assert sum(t.nbytes for t in tensors.values()) <= len(data), "tensors hold more bytes than the file"
        again = path.with_name("again")
        with own_files():
            safetensors_file.write(again, tensors, notes)
            back, said = safetensors_file.read(again)
        assert said == notes and back.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert tensor.shape == back[name].shape and bytes(tensor.view(-1).view(torch.uint8)) == bytes(
                back[name].view(-1).view(torch.uint8)
            )
    except ValueError as error:
        one_line(str(error))


def targets() -> list[Target]:
    return [
        Target(
            "objects",
            "gates.audit.object.check, elf, cubin",
            "two committed objects",
            "one cubin whose facts can be stored, or an `AuditError` of one line",
            "elf",
            _objects,
            _object,
            (b"\x7fELF", cubins.FATBIN, b".text.", b"\0"),
        ),
        Target(
            "cubins",
            "gates.audit.cubin.read",
            "the cubins of two committed objects",
            "kernels whose facts can be stored, or an `ElfError` of one line",
            "elf",
            lambda: [cubins.embedded(o)[0][1] for o in _objects()],
            _cubin,
            (b"\x7fELF", b".nv.info.", b".text."),
        ),
        Target(
            "recorder",
            "gates.audit.recorder.decode, limits.check",
            "the lines of one call",
            "launches that keep the limits and can be stored, or an `AuditError` of one line",
            "json",
            _lines,
            _recorded,
            LINES,
        ),
        Target(
            "tensor-maps",
            "gates.ptx.matrix.tensormap.decode",
            "maps that a driver wrote",
            "a map of positive sizes, or a ValueError of one line",
            "bytes",
            _map_seeds,
            _map,
        ),
        Target(
            "weights",
            "model.nano.safetensors_file.read, decoder.weights.check",
            "two small files",
            "tensors no larger than the file that are written and read again alike, or a ValueError of one line",
            "text",
            _weights_seeds,
            _weights,
            (b"[-1,-4]", b'"shape":[]', b'"dtype":"U8"', b"1e9", b"true", b"1" * 400),
        ),
    ]
