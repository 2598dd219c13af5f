"""moe_latent_down: activation rows down to the latent that routed experts read: lat = bf16(m @ w_latent.T).

w_latent [latent, hidden]: this rank's shard of the 3584 rows, 448 (TP8) or 224 (TP16); all 3584 where the projection
is not sharded (vllm-tp1); 128, all of them, for nano. Source: vLLM 0.33's latent down-projection of the MoE block.
Not covered: the all-gather of the shards and the router, which reads the same rows.
"""

from typing import ClassVar

from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import projection
from kgen.ops.pack import HIDDEN

LATENT = {"k3-tp8": 3584 // 8, "k3-tp16": 3584 // 16, "vllm-tp1": 3584, "nano": 128}  # rows that a rank computes


class MoeLatentDown(projection.Projection):
    name: ClassVar = "moe_latent_down"
    title: ClassVar = "latent down projection of the MoE block (this rank's rows)"
    doc: ClassVar = __doc__ or ""
    dims: ClassVar = {
        d: {"hidden": HIDDEN["k3-tp8" if d == "vllm-tp1" else d], "latent": latent} for d, latent in LATENT.items()
    }
    tensors: ClassVar = (
        TensorSpec("m", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows"),
        TensorSpec("w_latent", "bf16", ("latent", "hidden"), Role.WEIGHT, "down projection, K contiguous"),
        TensorSpec("lat", "bf16", ("tokens", "latent"), Role.OUT, "latent columns of this rank"),
    )
    shared: ClassVar = (projection,)
    mutable_inputs: ClassVar = ("m",)
