"""The Kimi K3 model pack: its ops, dims and token bins. Outside this folder and `model/` nothing names the model."""

from kgen.contract.op import Registry
from kgen.ops.attn_res import AttnRes
from kgen.ops.moe_shared import MoeShared
from kgen.ops.pack import PACK

REGISTRY = Registry({op.name: op for op in (MoeShared(), AttnRes())})

__all__ = ["PACK", "REGISTRY"]
