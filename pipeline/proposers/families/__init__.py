"""Parametrised kernel families of the `search` proposer: templates, known good points and parameter spaces, by op.

One module a family; a family of a new op is added to the table here.
"""

from kgen.proposers.families import (
    attn_res,
    dense_mlp,
    kda_core,
    lm_head_argmax,
    mla_dcp_merge,
    mla_decode,
    mla_kv_append,
    mla_out_gate,
    mla_q,
    moe_experts,
    moe_router,
    moe_shared,
    moe_tail,
    oproj_allreduce_residual,
    projection,
)
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import FIXED, Variant, render
from kgen.proposers.families.space import Choice, Limit, Space, Whole

FAMILIES: dict[str, Family] = {
    **projection.FAMILIES,
    "moe_shared": moe_shared.FAMILY,
    "dense_mlp": dense_mlp.FAMILY,
    "attn_res": attn_res.FAMILY,
    "kda_core": kda_core.FAMILY,
    "moe_router": moe_router.FAMILY,
    "moe_tail": moe_tail.FAMILY,
    "oproj_allreduce_residual": oproj_allreduce_residual.FAMILY,
    "moe_experts": moe_experts.FAMILY,
    "lm_head_argmax": lm_head_argmax.FAMILY,
    "mla_decode": mla_decode.FAMILY,
    "mla_kv_append": mla_kv_append.FAMILY,
    "mla_q": mla_q.FAMILY,
    "mla_out_gate": mla_out_gate.FAMILY,
    "mla_dcp_merge": mla_dcp_merge.FAMILY,
}

__all__ = ["FAMILIES", "FIXED", "Choice", "Family", "Limit", "Space", "Variant", "Whole", "render"]
