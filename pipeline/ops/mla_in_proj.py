"""mla_in_proj: the input projection of an MLA layer, this rank's gate rows: p = bf16(x @ w_in.T).

Rows of w_in, and so columns of p, with H local heads and d = 128 H:

    q_a[1536]  kv[512]  k_pe[64]  gate[d]

N = 3648 (TP8, H = 12), 2880 (TP16, H = 6); nano: q_a[128], N = 960 (H = 2). The rows before the gate are the same on
every rank; k_pe is neither normed nor rotated later. Source: the row layout is vLLM 0.33's `fused_qkv_a_g_proj`.
Not covered: the norms, the up-projections and the cache that follow.
"""

from typing import ClassVar

from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import projection
from kgen.ops.pack import HIDDEN

Q_LORA = {"k3-tp8": 1536, "k3-tp16": 1536, "nano": 128}
KV_LORA, KEY_SHARED = 512, 64
GATE = {"k3-tp8": 128 * 96 // 8, "k3-tp16": 128 * 96 // 16, "nano": 128 * 2}  # this rank's heads


class MlaInProj(projection.Projection):
    name: ClassVar = "mla_in_proj"
    title: ClassVar = "MLA input projection: low-rank query, latent, shared key, gate"
    doc: ClassVar = __doc__ or ""
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "width": Q_LORA[d] + KV_LORA + KEY_SHARED + GATE[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("x", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows"),
        TensorSpec("w_in", "bf16", ("width", "hidden"), Role.WEIGHT, "q_a, kv, k_pe, gate; K contiguous"),
        TensorSpec("p", "bf16", ("tokens", "width"), Role.OUT, "projected rows"),
    )
    shared: ClassVar = (projection,)
    mutable_inputs: ClassVar = ("x",)
