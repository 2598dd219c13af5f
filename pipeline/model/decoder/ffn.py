"""The two FFN kinds of a layer, seated on the ops: [rows, hidden] -> the delta [rows, hidden].

Latent projections are seated once a local shard, and the tail once a rank's columns: together they are whole.
"""

from collections.abc import Mapping

import torch

from kgen.model.decoder.seats import Seats
from kgen.ops.pack import RMS_EPS

Part = Mapping[str, torch.Tensor]


class Dense:
    def __init__(self, layer: int, seats: Seats, w: Part) -> None:
        self.w = w
        self._mlp = seats.bind("dense_mlp", f"layers.{layer}.dense")

    def __call__(self, m: torch.Tensor) -> torch.Tensor:
        return self._mlp({"m": m, **self.w})["y"]


class Moe:
    def __init__(self, layer: int, seats: Seats, w: Part) -> None:
        self.w = w
        name = f"layers.{layer}"
        self._router = seats.bind("moe_router", f"{name}.router")
        rows, latent = seats.sizes("moe_latent_down")["latent"], w["w_latent"].shape[0]
        self._down = [
            (seats.bind("moe_latent_down", f"{name}.latent.{k}"), w["w_latent"][k * rows : (k + 1) * rows])
            for k in range(latent // rows)
        ]
        self._shared = seats.bind("moe_shared", f"{name}.shared")
        self._experts = seats.bind("moe_experts", f"{name}.experts")
        tail = seats.sizes("moe_tail")
        self._ranks, columns = tail["ranks"], tail["columns"]
        self._tail = [
            (seats.bind("moe_tail", f"{name}.tail.{r}"), slice(r * columns, (r + 1) * columns))
            for r in range(w["w_up"].shape[0] // columns)
        ]

    def __call__(self, m: torch.Tensor) -> torch.Tensor:
        w = self.w
        chosen = self._router({"m": m, "w_router": w["w_router"], "bias": w["bias"], "scale": 1.0})
        latent = torch.cat([down({"m": m, "w_latent": part})["lat"] for down, part in self._down], dim=1)
        quantised = {n: w[n] for n in ("w13", "s13", "w2", "s2")}
        part = self._experts({"lat": latent, "ids": chosen["ids"], "w": chosen["w"], **quantised})["part"]
        shared = self._shared({"m": m, "w_gate_up": w["w_shared_gate_up"], "w_down": w["w_shared_down"]})["y"]
        parts, sums = self._mailbox(part), self._mailbox(shared)
        deltas = [
            tail(
                {
                    "parts": parts,
                    "shared": sums[:, :, c].contiguous(),
                    "gamma": w["gamma"],
                    "w_up": w["w_up"][c],
                    "eps": RMS_EPS,
                }
            )["delta"]
            for tail, c in self._tail
        ]
        return torch.cat(deltas, dim=1)

    def _mailbox(self, own: torch.Tensor) -> torch.Tensor:
        """[rows, width] -> [ranks, rows, width]: this rank's partial in slot 0, zeros from the peers."""
        box = own.new_zeros((self._ranks, *own.shape))
        box[0] = own
        return box
