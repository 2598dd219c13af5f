"""What docs/vllm.md and README.md say of promoted kernels in a real vLLM, from benchmarks/vllm_h200.json."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from support.checkout import ROOT
from support.kernel_tables import table

RECORD = ROOT / "benchmarks" / "vllm_h200.json"
KINDS = ("KDA+dense", "MLA+dense", "KDA+MoE", "MLA+MoE")
DISTANCES = {
    "stock_against_itself_in_another_batch": "stock, alone and beside 7 others",
    "stock_again": "stock again, same batch",
    "promoted_against_stock_8": "promoted beside stock, 8 requests",
    "promoted_against_stock_1": "promoted beside stock, 1 request",
}


def wrapped(text: str) -> str:
    """A paragraph."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def changed(t: Mapping[str, float]) -> str:
    return f"{t['stock']:.1f} → {t['on']:.1f} ({t['ratio']:.2f}×)"


def times_table(found: Mapping[str, Any]) -> str:
    rows = []
    for batch, t in found["times"].items():
        host = f"{t['host_step_us']['stock'] / 1e3:.2f} → {t['host_step_us']['on'] / 1e3:.2f}"
        rows.append([batch, *(changed(t[kind]) for kind in KINDS), spread(t["sum"]), host])
    return table(["requests", *(f"{kind}, µs" for kind in KINDS), "all layers", "step on the host, ms"], rows)


def ops_table(found: Mapping[str, Any]) -> str:
    """Which ops ran promoted at which sizes, in how many layers or calls."""
    rows = []
    for op, seat in found["plan"]["seats"].items():
        calls = {b: by_op.get(op, {}).get("promoted", 0) for b, by_op in found["plan"]["captured"].items()}
        at = sorted((int(b) for b, n in calls.items() if n), key=int)
        rows.append([op, str(len(seat["layers"])), ", ".join(map(str, at)) or "nowhere"])
    return table(["op", "calls a step", "promoted at"], rows)


def logits_table(found: Mapping[str, Any]) -> str:
    rows = []
    for key, what in DISTANCES.items():
        d = found["logits"][key]
        rows.append([what, *(f"{d[n]:.3g}" for n in ("median", "p99", "max")), f"{d['same_choice'] * 100:.0f} %"])
    return table(["logits", "median", "99 %", "max", "same choice"], rows)


def damage_table(found: Mapping[str, Any]) -> str:
    rows = []
    for name, case in found["damage"].items():
        if "failed" in case:
            rows.append([name, f"failed: {case['failed']}", ""])
        else:
            rows.append([name, "stock's" if case["equal_tokens"] else "others", str(case["lines"])])
    return table(["what is wrong", "tokens", "lines"], rows)


def features(found: Mapping[str, Any]) -> list[str]:
    """A paragraph and a table; one sentence where no features were tried."""
    if not (cases := found.get("features")):
        return ["Structured output, seeds, prefix caching, long contexts and speculation were not tried on a GPU."]
    rows = []
    for name, case in cases.items():
        if "failed" in case:
            rows.append([name, f"failed: {case['failed']}", "", ""])
            continue
        heads = ", ".join(f"{h * 100:.0f} %" for h in case["common_head"])
        rows.append([name, case["verdict"], ", ".join(case["promoted"]), heads])
    said = (
        "Features, stock's engine and the plugin's one after another. In order: every answer of both is as its request"
        " asked (as long; under a rule, of its form), both used the feature, and promoted kernels were in the plugin's"
        " decode graphs. The last column is how much of each request's tokens both have in common from the start."
    )
    return [said, table(["feature", "verdict", "promoted in its decode graphs", "same tokens"], rows)]


def how(found: Mapping[str, Any]) -> str:
    if found["by_turns"]:
        rounds = sorted({int(t["rounds"]) for t in found["times"].values()})
        return f"medians over {' to '.join(map(str, rounds))} rounds, stock and promoted by turns"
    return "one profiled step a side, stock's first: not by turns, so small differences say nothing"


def spread(t: Mapping[str, float]) -> str:
    """A ratio of medians, and those of single rounds where there was more than one."""
    rounds = f" ({t['least']:.2f}–{t['greatest']:.2f})" if t.get("least", 0) < t.get("greatest", 0) else ""
    return f"{t['ratio']:.2f}×{rounds}"


def brackets(found: Mapping[str, Any]) -> str:
    return " In brackets: the least and the greatest ratio of one round." if found["by_turns"] else ""


def states(found: Mapping[str, Any]) -> str:
    """How the convolution states lay on each side; "" where the record does not say."""
    shapes = found.get("conv_states") or {}
    if not shapes or "failed" in shapes:
        return ""
    by_side = {side: " and ".join("×".join(map(str, s)) for s in of) for side, of in shapes.items()}
    same = len(set(by_side.values())) == 1
    return (
        f" KDA's convolution states of a slot: {by_side['stock']} on both sides."
        if same
        else f" KDA's convolution states of a slot: stock {by_side['stock']}, promoted {by_side['on']}."
    )


def differences(lines: Sequence[str]) -> str:
    """What two runs differ in, "nothing" or each kind with its batch sizes."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        batch, _, what = line.removeprefix("batch ").partition(": ")
        kinds.setdefault(what, []).append(batch)
    return "; ".join(f"{what} (at {', '.join(at)})" for what, at in kinds.items()) or "nothing"


def isolated(found: Mapping[str, Any]) -> str:
    """What the plugin changed without its key, in one process and in two."""
    said = f"in one process, beside stock's engine: {differences(found['isolation'])}"
    if repeats := found.get("stock_repeats"):
        unsteady = [batch for batch, same in repeats.items() if not same]
        said += (
            f", where stock gives its own tokens again at {'all' if not unsteady else 'all but ' + ', '.join(unsteady)}"
        )
    else:
        said += "; whether stock gives its own tokens again was not asked"
    if two := found.get("isolation_in_two_processes"):
        at = " and ".join(map(str, two["batches"]))
        return f"{said}. In two processes, at {at} requests: {differences(two['differences'])}."
    return f"{said}. Two processes, with and without the plugin, were not compared."


def joined(found: Mapping[str, Any]) -> str:
    """How far tokens agree where requests join and leave."""
    churn = found.get("churn", {"failed": "the run ended before"})
    if "failed" in churn:
        return f"Requests that join and leave: failed, {churn['failed']}."
    one, other = (churn[key]["common_head"] * 100 for key in ("promoted_against_stock", "stock_in_another_order"))
    return (
        f"Of {churn['promoted_against_stock']['requests']:.0f} requests that join and leave, promoted and stock have"
        f" {one:.0f} % of each one's tokens in common from the start, stock and stock in another order {other:.0f} %."
    )


def region(*_: object) -> str:
    """docs/vllm.md's section of results."""
    found = record()
    e = found["environment"]
    c = e["config"]
    at = f" (kgen at commit {found['damage_at']})" if "damage_at" in found else ""
    trigger = "every one as often as the record says" if not found["trigger"] else "; ".join(found["trigger"])
    said = [
        f"On one {e['gpu']}, torch {e['torch']}, vLLM {e['vllm']}: {c['num_hidden_layers']} layers,"
        f" {c['first_k_dense_replace']} of them dense, {c['num_experts']} experts, one TP8 rank's widths, seeded"
        f" weights; kgen at commit {found['commit']}. Layers are timed from the end of the one before to their own end,"
        f" in graph replays: {how(found)}.{brackets(found)}{states(found)}",
        times_table(found),
        f"Kernels of the promoted set in the profiled steps, at all sizes: {trigger}. Refused: {found['refused']}.",
        ops_table(found),
        f"Relative L2 distance of {found['logits']['stock_again']['steps']:.0f} steps' logits, given the same tokens."
        f" Weights are noise, and {c['num_hidden_layers']} layers of them amplify every rounding: the yardstick is"
        " stock in another batch.",
        logits_table(found),
        joined(found),
        f"What the plugin changes without its key: {isolated(found)}",
        f"Broken on purpose, each in a start of its own{at}:",
        damage_table(found),
        *features(found),
    ]
    return "\n" + "\n".join(part if part.startswith("|") else wrapped(part) for part in said) + "\n"


def headline(*_: object) -> str:
    """README.md's sentence."""
    found = record()
    e, ops = found["environment"], len(found["plan"]["seats"])
    ratios = {int(b): t["sum"]["ratio"] for b, t in found["times"].items()}
    moe, best = found["times"]["1"]["KDA+MoE"], max(ratios, key=lambda b: ratios[b])
    said = (
        f"In vLLM {e['vllm']} on one {e['gpu']} ({ops} ops promoted, experts and attention stock) all layers together"
        f" are {ratios[1]:.2f}× as fast as stock at 1 request and {ratios[best]:.2f}× at {best}, the best; a KDA+MoE"
        f" layer takes {moe['stock']:.0f} → {moe['on']:.0f} µs at 1 request. {how(found).capitalize()}."
    )
    return f"\n{wrapped(said)}\n"
