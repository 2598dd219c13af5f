"""The weights of a decode model: a flat table of tensors by name, checked as a whole, read from safetensors.

Names: `embed`, `lm_head`, `final.*`, `layers.<i>.pre.*`, `.post.*`, `.kda.*`, `.mla.*`, `.dense.*`, `.moe.*`; matrices
are [out, in], bf16 unless the table of `expected` says otherwise; experts are MXFP4 in the checkpoint's layout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from kgen.contract.op import Registry
from kgen.model.decoder.config import DENSE, KDA, Config, sizes
from kgen.model.nano import safetensors_file
from kgen.records import one_line

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8
Shape = tuple[torch.dtype, tuple[int, ...]]
SHOWN = 6  # problems of a checkpoint that one line names
SHOWN_NAME = 80  # characters of a foreign name


class CheckpointError(ValueError):
    """One line that names everything that is wrong with a checkpoint."""


@dataclass(frozen=True)
class Weights:
    """All tensors of one model, on one device."""

    tensors: Mapping[str, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        """The tensors below `prefix`, by the rest of their names."""
        start = f"{prefix}."
        return {name[len(start) :]: t for name, t in self.tensors.items() if name.startswith(start)}

    @property
    def device(self) -> torch.device:
        return self.tensors["embed"].device


def expected(config: Config, registry: Registry) -> dict[str, Shape]:
    """Name -> (dtype, shape) of every tensor."""
    hidden = sizes(registry.get("attn_res"), config.dims)["hidden"]
    vocab = sizes(registry.get("lm_head_argmax"), config.dims)["vocab"]
    table: dict[str, Shape] = {"embed": (BF16, (vocab, hidden)), "lm_head": (BF16, (vocab, hidden))}
    table.update(_mix("final", hidden))
    for i, layer in enumerate(config.layers):
        attention = _kda if layer.attention == KDA else _mla
        ffn = _dense if layer.ffn == DENSE else _moe
        table.update(_mix(f"layers.{i}.pre", hidden))
        table.update(_mix(f"layers.{i}.post", hidden))
        table.update((f"layers.{i}.{layer.attention}.{n}", s) for n, s in attention(config, registry))
        table.update((f"layers.{i}.{layer.ffn}.{n}", s) for n, s in ffn(config, registry))
    return table


def _mix(prefix: str, hidden: int) -> dict[str, Shape]:
    return {f"{prefix}.{name}": (BF16, (hidden,)) for name in ("w_norm", "w_query", "w_out")}


def _kda(config: Config, registry: Registry) -> Iterator[tuple[str, Shape]]:
    core, proj = sizes(registry.get("kda_core"), config.dims), sizes(registry.get("kda_in_proj"), config.dims)
    heads, width = core["heads"], core["width"]
    head = width // heads
    yield "w_in", (BF16, (proj["width"], proj["hidden"]))
    yield "conv_w", (F32, (3 * width, 4))
    yield "f_b", (BF16, (width, head))
    yield "a_log", (F32, (heads,))
    yield "dt_bias", (F32, (width,))
    yield "w_onorm", (BF16, (head,))
    yield "w_o", (BF16, (proj["hidden"], width))


def _mla(config: Config, registry: Registry) -> Iterator[tuple[str, Shape]]:
    q, proj = sizes(registry.get("mla_q"), config.dims), sizes(registry.get("mla_in_proj"), config.dims)
    heads, lora, latent = q["heads"], q["q_lora"], q["latent"]
    yield "w_in", (BF16, (proj["width"], proj["hidden"]))
    yield "w_qn", (BF16, (lora,))
    yield "w_qb", (BF16, (q["qb_rows"], lora))
    yield "w_uk", (BF16, (heads, q["nope"], latent))
    yield "w_kvn", (BF16, (latent,))
    yield "w_uv", (BF16, (heads, latent, q["value"]))
    yield "w_o", (BF16, (proj["hidden"], q["width"]))


def _dense(config: Config, registry: Registry) -> Iterator[tuple[str, Shape]]:
    s = sizes(registry.get("dense_mlp"), config.dims)
    yield "w_gate_up", (BF16, (2 * s["width"], s["hidden"]))
    yield "w_down", (BF16, (s["hidden"], s["width"]))


def _moe(config: Config, registry: Registry) -> Iterator[tuple[str, Shape]]:
    e, shared = sizes(registry.get("moe_experts"), config.dims), sizes(registry.get("moe_shared"), config.dims)
    hidden, experts, latent, width = shared["hidden"], e["experts"], e["latent"], e["width"]
    yield "w_router", (BF16, (experts, hidden))
    yield "bias", (F32, (experts,))
    yield "w_latent", (BF16, (latent, hidden))
    yield "w13", (U8, (experts, 2 * width, latent // 2))
    yield "s13", (U8, (experts, 2 * width, latent // 32))
    yield "w2", (U8, (experts, latent, width // 2))
    yield "s2", (U8, (experts, latent, width // 32))
    yield "gamma", (BF16, (latent,))
    yield "w_up", (BF16, (hidden, latent))
    yield "w_shared_gate_up", (BF16, (2 * shared["width"], hidden))
    yield "w_shared_down", (BF16, (hidden, shared["width"]))


def check(tensors: Mapping[str, torch.Tensor], config: Config, registry: Registry, source: str) -> None:
    """Raises CheckpointError: missing, unknown, misshapen, mistyped or non-finite tensors, all in one line."""
    wanted = expected(config, registry)
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{one_line(name, SHOWN_NAME)} is unknown" for name in tensors if name not in wanted]
    for name, (dtype, shape) in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            problems.append(f"{name} is {_kind(tensor.dtype)}{list(tensor.shape)}, must be {_kind(dtype)}{list(shape)}")
        elif tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            problems.append(f"{name} has values that are not finite")
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckpointError(f"{source} is no checkpoint of {config.name}: {'; '.join(problems[:SHOWN])}{more}")


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def load(path: Path, config: Config, registry: Registry, device: str) -> Weights:
    """Read and check a safetensors file. Raises CheckpointError (one line) for anything that is wrong with it."""
    try:
        tensors, _ = safetensors_file.read(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}; fetch or train it again") from error
    check(tensors, config, registry, str(path))
    return Weights({name: t.to(device) for name, t in tensors.items()})


def checksum(weights: Weights) -> int:
    """Sum over all bytes: two processes whose weights differ disagree (order within a tensor is not seen)."""
    return sum(int(t.contiguous().view(torch.uint8).sum(dtype=torch.int64)) for t in weights.tensors.values())
