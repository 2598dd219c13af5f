"""The Kimi K3 model pack: its ops, dims and token bins. Outside this folder and `model/` nothing names the model."""

from kgen.contract.op import Registry
from kgen.contract.ranks import RankedOp
from kgen.ops.attn_res import AttnRes
from kgen.ops.dense_mlp import DenseMlp
from kgen.ops.kda_core import KdaCore
from kgen.ops.kda_in_proj import KdaInProj
from kgen.ops.lm_head_argmax import LmHeadArgmax
from kgen.ops.mla_dcp_merge import MlaDcpMerge
from kgen.ops.mla_decode import MlaDecode
from kgen.ops.mla_in_proj import MlaInProj
from kgen.ops.mla_kv_append import MlaKvAppend
from kgen.ops.mla_out_gate import MlaOutGate
from kgen.ops.mla_q import MlaQ
from kgen.ops.moe_experts import MoeExperts
from kgen.ops.moe_latent_down import MoeLatentDown
from kgen.ops.moe_router import MoeRouter
from kgen.ops.moe_shared import MoeShared
from kgen.ops.moe_tail import MoeTail
from kgen.ops.oproj_allreduce_residual import OprojAllreduceResidual
from kgen.ops.oproj_partial import OprojPartial
from kgen.ops.pack import PACK
from kgen.ops.ranked_allreduce_residual import RankedAllreduceResidual
from kgen.ops.ranked_lm_head_argmax import RankedLmHeadArgmax
from kgen.ops.ranked_mla_dcp_merge import RankedMlaDcpMerge
from kgen.ops.ranked_moe_front import RankedMoeFront
from kgen.ops.ranked_moe_tail import RankedMoeTail
from kgen.ops.ranked_oproj_allreduce_residual import RankedOprojAllreduceResidual

# In the order of a decode step.
OPS = (
    AttnRes,
    KdaInProj,
    KdaCore,
    MlaInProj,
    MlaQ,
    MlaKvAppend,
    MlaDecode,
    MlaDcpMerge,
    MlaOutGate,
    OprojPartial,
    OprojAllreduceResidual,
    MoeRouter,
    MoeLatentDown,
    MoeShared,
    MoeExperts,
    MoeTail,
    DenseMlp,
    LmHeadArgmax,
)

# What several ranks compute together, in the same order. A new one needs its import above and its line here.
SEVERAL: tuple[type[RankedOp], ...] = (
    RankedMlaDcpMerge,
    RankedOprojAllreduceResidual,
    RankedAllreduceResidual,
    RankedMoeFront,
    RankedMoeTail,
    RankedLmHeadArgmax,
)

RANKED: dict[str, RankedOp] = {op.name: op() for op in SEVERAL}
REGISTRY = Registry({op.name: op() for op in OPS}, RANKED)

__all__ = ["PACK", "RANKED", "REGISTRY"]
