"""Times of layers in profiled steps of a served model, and what rounds of them say; no torch, no vLLM."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]


def layer_spans(events: Sequence[Event], config: Mapping[str, Any]) -> dict[str, float]:
    """Kind of layer -> median time of one in microseconds; "sum": of all layers.

    A layer's time is from the end of the one before it to its own end: kernels that are launched early overlap with
    those before them, and from first start to last end such an overlap would be counted in both layers.
    """
    kda, dense = config["linear_attn_config"]["kda_layers"], config["first_k_dense_replace"]
    inside = [e for e in events if str(e["half"]).startswith("layer ")]
    start = before = min(e["ts"] for e in inside)
    kinds: dict[str, list[float]] = {}
    for i in range(config["num_hidden_layers"]):
        end = max(e["ts"] + e["us"] for e in inside if e["half"].startswith(f"layer {i} "))
        kind = f"{'KDA' if i + 1 in kda else 'MLA'}+{'dense' if i < dense else 'MoE'}"
        kinds.setdefault(kind, []).append(end - before)
        before = end
    return {**{kind: statistics.median(times) for kind, times in kinds.items()}, "sum": before - start}


def measured(
    number: int, batch: int, side: str, events: Sequence[Event], step_s: Sequence[float], config: Mapping[str, Any]
) -> dict[str, Any]:
    """One step of one side: spans by kind of layer and the host's median step, in microseconds."""
    return {
        "round": number,
        "batch": batch,
        "side": side,
        "spans": layer_spans(events, config),
        "openers": sum("attn_res" in e["name"] for e in events),  # 2 a layer and 1, else spans are wrong
        "host_step_us": statistics.median(step_s[2:]) * 1e6,
    }


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By batch: medians over the rounds, before and after, their ratio, and least and greatest ratio of a round."""
    found: dict[str, Any] = {}
    for batch in dict.fromkeys(r["batch"] for r in rounds):
        sides = {s: [r for r in rounds if (r["batch"], r["side"]) == (batch, s)] for s in ("stock", "on")}
        if not all(sides.values()):
            continue
        rows = {}
        for kind in [*sides["stock"][0]["spans"], "host_step_us"]:
            values = {side: {r["round"]: _time(r, kind) for r in of} for side, of in sides.items()}
            stock, on = (statistics.median(values[side].values()) for side in ("stock", "on"))
            both = [values["stock"][n] / us for n, us in values["on"].items() if us and n in values["stock"]]
            rows[kind] = {"stock": stock, "on": on, "ratio": stock / on if on else 0.0}
            rows[kind] |= {"least": min(both), "greatest": max(both)} if len(both) > 1 else {}
        found[str(batch)] = {**rows, "rounds": len(sides["on"])}
    return found


def _time(measurement: Mapping[str, Any], kind: str) -> float:
    time = measurement["host_step_us"] if kind == "host_step_us" else measurement["spans"][kind]
    return float(time)
