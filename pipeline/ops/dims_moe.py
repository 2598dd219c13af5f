"""Sizes of the routed experts and the latent that feeds them, by dims name. Data only."""

from collections.abc import Mapping

LATENT: Mapping[str, int] = {"k3-tp8": 3584, "k3-tp16": 3584, "nano": 128}
EXPERTS: Mapping[str, int] = {"k3-tp8": 896, "k3-tp16": 896, "nano": 16}
TOP_K: Mapping[str, int] = {"k3-tp8": 16, "k3-tp16": 16, "nano": 4}

# One rank's slice of an expert: hidden units that the checkpoint gives it, and units as stored. 192 is not a whole
# number of 128-wide tiles, so those ranks store 256 and the rest holds zeros (mxfp4.pack puts them there).
EXPERT_SLICE: Mapping[str, int] = {"k3-tp8": 3072 // 8, "k3-tp16": 3072 // 16, "nano": 64}
EXPERT_WIDTH: Mapping[str, int] = {"k3-tp8": 384, "k3-tp16": 256, "nano": 64}

RANKS: Mapping[str, int] = {"k3-tp8": 8, "k3-tp16": 16, "nano": 2}
