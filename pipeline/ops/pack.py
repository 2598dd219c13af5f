"""Kimi K3's points. `nano` is the same architecture, small enough to train and to interpret."""

from collections.abc import Mapping

from kgen.contract.op import Pack

PACK = Pack(
    name="k3",
    title="Kimi K3",
    bins=(1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64),
    padded=(12, 24, 48),
    quick_bins=(1, 8),
    served=("k3-tp8", "k3-tp16"),
    small="nano",
    same_as={"vllm-tp1": "k3-tp8"},  # one TP8 rank's widths in one process; only what is not sharded there differs
)

HIDDEN: Mapping[str, int] = {"k3-tp8": 7168, "k3-tp16": 7168, "nano": 256}
SHARED_WIDTH: Mapping[str, int] = {"k3-tp8": 6144 // 8, "k3-tp16": 6144 // 16, "nano": 128}  # this rank's slice
ATTN_RES_SLOTS: Mapping[str, int] = {"k3-tp8": 8, "k3-tp16": 8, "nano": 2}  # ceil(layers / block size)

SITU_BETA = 4.0
SITU_LINEAR_BETA = 25.0
RMS_EPS = 1e-5
