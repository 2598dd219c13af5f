#!/usr/bin/env python3
"""Stock vLLM, vLLM with the plugin unused, and vLLM with promoted kernels, in one process on one GPU, by turns.

    python3 -P vllm_one.py --builder TINY.py --set FOLDER --out FOLDER [--dense N] [--seconds S] -- --layers 15 ...
    python3 -P vllm_one.py --damage ...             # (e), support/vllm_damage.py; with a small model
    python3 -P vllm_one.py --features ...           # the rest of (c), support/vllm_features.py; with a small model

`-P`: files beside this one have names of packages. Behind `--`: TINY.py's own options; it makes a small random model,
and has `K3`, its configuration, and the functions that `Engines` and `loaded` call. `one.json` (or `damage.json`) is
written anew after every part: a run that is cut leaves what it had.

Shown: (a) tokens and kernels of a step without the plugin and with it but without its key; (b) promoted kernels in the
trace, as often as the record says; (c) logits of 512 decode steps that are made to take the same tokens: promoted and
stock, and stock beside itself in another batch, and requests that join and leave, some sampled with a seed; (d) spans
of layers and steps of the host, by turns. Unless VLLM_SSM_CONV_STATE_LAYOUT says otherwise, both sides keep KDA's
convolution states channel by channel, which the seat of kda_core needs; the record says how they lay in each engine.
Not shown: several ranks.
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from support.vllm_proof import head, isolation, trigger
from support.vllm_spans import Event, measured, summary

STEPS = 512  # of decoding with given tokens
FORCED = (8, 1)  # batch sizes of that; each row of the first also runs alone


def loaded(path: Path, arguments: Sequence[str]) -> tuple[Any, Any]:
    """The builder as a module, and its parsed options."""
    spec = importlib.util.spec_from_file_location("tiny_builder", path)
    assert spec and spec.loader
    builder = importlib.util.module_from_spec(spec)
    sys.argv = [str(path), *arguments]
    spec.loader.exec_module(builder)
    return builder, builder.arguments()


class Engines:
    """Engines of one configuration in this process. They stay alive: their captured graphs use common memory."""

    def __init__(self, builder: Any, options: Any, dense: int) -> None:
        self.builder, self.options, self._kept = builder, options, list[Any]()
        os.environ.setdefault("VLLM_SSM_CONV_STATE_LAYOUT", "DS")  # one layout a process: stock has it too
        builder.set_environment(options)
        if dense:
            builder.K3["first_k_dense_replace"] = dense
        self.config = builder.text_config(options)
        builder.register_loader(self.config, options)
        self.keywords = builder.engine_keywords(options)

    def build(self, additional: Mapping[str, Any] | None = None, more: Mapping[str, Any] | None = None) -> Any:
        """`more`: keywords of vLLM's that replace the builder's."""
        folder = Path(f"{self.options.dir}-{len(self._kept)}")  # vLLM remembers the class of each model by its folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1))
        keywords = {**self.keywords, **(more or {}), "model": str(folder)}
        if additional:
            keywords["additional_config"] = dict(additional)
        llm = self.builder.build_engine(keywords, self.options.stall)
        workspace = sys.modules.get("vllm.v1.worker.workspace")
        self._kept += [llm, getattr(workspace, "_manager", None)]  # the next engine puts its own in that place
        return llm

    def plugin(self) -> str:
        """What vLLM's loader does with the plugin's entry point; returns the plugin's status."""
        points = importlib.metadata.entry_points(group="vllm.general_plugins")
        next(e for e in points if e.name == "kgen").load()()
        return str(sys.modules["kgen.serve.vllm"].status())

    def tokens(self, llm: Any, batch: int, count: int, tag: str) -> tuple[list[list[int]], list[float]]:
        self.builder.start(llm, batch, self.options, count, tag)
        found, times = self.builder.drain(llm)
        return ordered(found, tag, batch), times

    def profile(self, llm: Any, batch: int, tag: str, mixes: Sequence[str] = ()) -> list[Event]:
        """The device events of one step by half of a layer; `mixes`: kernels that open one instead of AttnRes's own."""
        events: list[Event] = self.builder.profile_step(llm, batch, self.options, tag)
        for e in events:
            if any(name in e["name"] for name in mixes):
                e["name"] = f"attn_res: {e['name']}"
        self.builder.label_halves(events, self.config)
        return events

    def run(self, llm: Any, batch: int, tag: str, mixes: Sequence[str] = ()) -> dict[str, Any]:
        """What a builder's report holds of one batch size."""
        self.tokens(llm, batch, 4, f"{tag}-warm")
        tokens, times = self.tokens(llm, batch, self.options.tokens, tag)
        events = self.profile(llm, batch, f"{tag}-p", mixes)
        return {"batch": batch, "tokens": tokens, "step_s": times, "profile": {"events": events}}


def repeated(engines: Engines, llm: Any, run: Mapping[str, Any]) -> bool:
    """Whether the engine gives the tokens of `run` again: sums of experts and of splits may come in another order."""
    tokens, _ = engines.tokens(llm, run["batch"], engines.options.tokens, f"again-{run['batch']}")
    return bool(tokens == run["tokens"])


def model_of(llm: Any) -> Any:
    return llm.llm_engine.apply_model(lambda m: m)[0]


def conv_states(llm: Any) -> list[list[int]]:
    """Shapes of a slot's convolution state in the engine's KDA layers, each once: [channels, taps] or the other way."""
    layers = [m for m in model_of(llm).modules() if hasattr(m, "f_b_proj") and hasattr(m, "kv_cache")]
    return [list(shape) for shape in sorted({tuple(m.kv_cache[0].shape[1:]) for m in layers})]


def ordered(found: Mapping[str, list[int]], tag: str, batch: int) -> list[list[int]]:
    """Tokens by request; vLLM may add a suffix of its own to a name."""
    names = [f"{tag}-{b}" for b in range(batch)]
    return [next(v for k, v in found.items() if k == n or k.startswith(f"{n}-")) for n in names]


@contextmanager
def forced(model: Any, plan: Any, kept: list[Any]) -> Iterator[None]:
    """Steps of as many rows as `plan` [steps, rows] take its tokens; `kept` gets the logits that they had."""
    stock = model.compute_logits

    def compute_logits(*args: Any, **kwargs: Any) -> Any:
        logits = stock(*args, **kwargs)
        if logits is not None and logits.shape[0] == plan.shape[1] and len(kept) < plan.shape[0]:
            kept.append(logits.detach().clone())
            logits = logits.scatter(1, plan[len(kept) - 1][:, None], 1e6)
        return logits

    model.compute_logits = compute_logits
    try:
        yield
    finally:
        del model.compute_logits


def logits_of(engines: Engines, llm: Any, plan: Any, tag: str) -> Any:
    """[steps, rows, vocabulary] of a decode that takes the tokens of `plan`; row r is request r's."""
    import torch

    model = model_of(llm)
    kept: list[Any] = []
    with forced(model, plan, kept):
        tokens, _ = engines.tokens(llm, plan.shape[1], plan.shape[0], tag)
    columns = plan.T.tolist()
    order = [columns.index(t) for t in tokens]  # a ValueError: a request that took other tokens
    return torch.stack(kept)[:, order]


def distance(got: Any, want: Any) -> dict[str, float]:
    """How far logits are apart: relative L2 by step and row, and how often both choose the same token."""
    import torch

    apart = torch.cat(
        [
            ((g.float() - w.float()).norm(dim=-1) / w.float().norm(dim=-1)).flatten()
            for g, w in zip(got, want, strict=True)
        ]
    )
    same = torch.cat([(g.argmax(-1) == w.argmax(-1)).flatten() for g, w in zip(got, want, strict=True)])
    late = apart.reshape(len(got), -1)[-64:]
    return {
        "steps": float(len(got)),
        "rows": float(got.shape[1]),
        "median": float(apart.median()),
        "p99": float(apart.quantile(0.99)),
        "max": float(apart.max()),
        "median_of_the_last_64_steps": float(late.median()),
        "same_choice": float(same.float().mean()),
    }


def logits(engines: Engines, stock: Any, on: Any) -> dict[str, Any]:
    """(c) 512 steps with given tokens: promoted beside stock, and stock beside itself in another batch."""
    import torch

    rows, alone = FORCED
    generator = torch.Generator().manual_seed(5)
    model = model_of(stock)
    drawn = torch.randint(3, engines.options.vocab, (STEPS + 1, rows), generator=generator)
    plan = drawn.to(next(model.parameters()).device)
    together = logits_of(engines, stock, plan, "stock-f8")
    single = logits_of(engines, stock, plan[:, :alone], "stock-f1")
    found = {
        "stock_against_itself_in_another_batch": distance(single, together[:, :alone]),
        "stock_again": distance(logits_of(engines, stock, plan, "stock-f8b"), together),
        f"promoted_against_stock_{rows}": distance(logits_of(engines, on, plan, "on-f8"), together),
        f"promoted_against_stock_{alone}": distance(logits_of(engines, on, plan[:, :alone], "on-f1"), single),
    }
    own = found["stock_against_itself_in_another_batch"]
    found["within"] = {
        f"{name} {key}": float(found[name][key] <= own[key])
        for name in found
        if name.startswith("promoted")
        for key in ("median", "p99", "max")
    }
    return found


def churn(engines: Engines, llm: Any, tag: str, backwards: bool = False) -> list[list[int]]:
    """Tokens of 24 requests of several lengths that join while others decode; every third is sampled with a seed."""
    from vllm import SamplingParams

    waiting = [(3 * (i // 2), i) for i in range(24)]
    found: dict[str, list[int]] = {}
    step = 0
    while waiting or llm.llm_engine.has_unfinished_requests():
        due = [i for at, i in waiting if at <= step]
        waiting = [(at, i) for at, i in waiting if at > step]
        for i in reversed(due) if backwards else due:
            prompt = [3 + (7919 * (i + 1) + 31 * j * j) % (engines.options.vocab - 3) for j in range(8 + 5 * (i % 7))]
            sampled: dict[str, Any] = {"temperature": 0.8, "seed": i} if i % 3 == 2 else {"temperature": 0.0}
            params = SamplingParams(max_tokens=16 + 9 * (i % 5), ignore_eos=True, detokenize=False, **sampled)
            llm.llm_engine.add_request(f"{tag}-{i}", {"prompt_token_ids": prompt}, params)
        for o in llm.llm_engine.step():
            found[o.request_id] = list(o.outputs[0].token_ids)
        step += 1
    return ordered(found, tag, 24)


def heads(got: Sequence[Sequence[int]], want: Sequence[Sequence[int]]) -> dict[str, float]:
    """How much of each request's tokens is the same."""
    return {
        "requests": float(len(want)),
        "equal": float(sum(list(g) == list(w) for g, w in zip(got, want, strict=True))),
        "common_head": statistics.mean(head(g, w) / len(w) for g, w in zip(got, want, strict=True)),
    }


class Results:
    """One JSON file, whole after every part."""

    def __init__(self, path: Path) -> None:
        self.path, self.found, self.began = path, dict[str, Any](), time.monotonic()

    def put(self, name: str, value: Any) -> Any:
        self.found[name] = value
        self.found["seconds"] = {**self.found.get("seconds", {}), name: round(time.monotonic() - self.began, 1)}
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps(self.found, indent=1))
        written.replace(self.path)
        print(f"[one] {self.found['seconds'][name]:.0f} s: {name}", flush=True)
        return value

    def attempt(self, name: str, part: Callable[[], Any]) -> Any:
        """A part that may fail without taking the others along; None then."""
        try:
            return self.put(name, part())
        except Exception as error:  # the parts behind it count, whatever vLLM makes of this one
            logging.getLogger("one").exception("%s", name)
            self.put(name, {"failed": f"{type(error).__name__}: {error}"[:2000]})
            return None

    def left(self, seconds: float) -> float:
        return seconds - (time.monotonic() - self.began)


def by_turns(
    engines: Engines, results: Results, a: argparse.Namespace, sides: dict[str, Any], mixes: list[str]
) -> None:
    """(d) Rounds over the batch sizes, stock and promoted by turns, until the time is over."""
    rounds: list[dict[str, Any]] = []
    number = 0
    while results.left(a.seconds) > 0 and number < a.rounds:
        for batch in a.batches:
            for side, llm in sides.items() if number % 2 == 0 else reversed(list(sides.items())):
                tag = f"{side}-r{number}-{batch}"
                _, times = engines.tokens(llm, batch, engines.options.tokens, tag)
                events = engines.profile(llm, batch, f"{tag}-p", mixes if side == "on" else ())
                rounds.append(measured(number, batch, side, events, times, engines.config))
            results.put("turns", rounds)
            if results.left(a.seconds) <= 0:
                break
        number += 1
    if rounds:
        results.put("times", summary(rounds))


def proof(a: argparse.Namespace, engines: Engines, results: Results) -> None:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    versions = {"torch": torch.__version__, "vllm": importlib.metadata.version("vllm")}
    results.put("environment", {"gpu": gpu, **versions, "config": engines.config})
    stock = engines.build()
    results.put("stock_built", True)
    base = {"runs": [engines.run(stock, b, f"stock-{b}") for b in a.batches]}
    results.put("base", {"runs": [{k: r[k] for k in ("batch", "tokens")} for r in base["runs"]]})
    (a.out / "base_events.json").write_text(json.dumps(base))
    repeats = {r["batch"]: repeated(engines, stock, r) for r in base["runs"]}
    results.put("stock_repeats", {str(batch): same for batch, same in repeats.items()})
    results.put("plugin", engines.plugin())
    record = a.out / "on.record.json"
    key = {"set": str(a.set.resolve()), "record": str(record.resolve()), **({"ops": a.ops} if a.ops else {})}
    on = engines.build({"kgen": key})
    results.put("classes", {n: model_of(e).__class__.__module__ for n, e in (("stock", stock), ("on", on))})
    results.attempt("conv_states", lambda: {n: conv_states(e) for n, e in (("stock", stock), ("on", on))})
    found = results.put("record", json.loads(record.read_text()))
    bins = found["seats"].get("attn_res", {}).get("launches", {}).values()
    mixes = sorted({name.partition("_object_at")[0] for b in bins for name in b["per_call"]})
    after = {"runs": [engines.run(on, b, f"on-{b}", mixes) for b in a.batches]}
    (a.out / "on_events.json").write_text(json.dumps(after))
    results.attempt("trigger", lambda: trigger(after, found))
    pairs = list(zip(after["runs"], base["runs"], strict=True))
    results.put("agreement", {str(x["batch"]): heads(x["tokens"], y["tokens"]) for x, y in pairs})

    def unused() -> list[str]:
        off = engines.build()
        other = {"runs": [engines.run(off, b, f"off-{b}") for b in a.batches]}
        return isolation(base, other, [b for b, same in repeats.items() if not same])

    results.attempt("isolation", unused)
    results.attempt("logits", lambda: logits(engines, stock, on))
    gc.collect()

    while a.wait and not a.wait.exists() and results.left(a.seconds) > 60:
        time.sleep(1)  # another process on this GPU would be in the times
    once = [("stock", base), ("on", after)]
    first = [
        measured(0, r["batch"], side, r["profile"]["events"], r["step_s"], engines.config)
        for side, report in once
        for r in report["runs"]
    ]
    results.put("once", summary(first))  # in case that no time is left for rounds by turns
    if results.left(a.seconds) > 40:
        by_turns(engines, results, a, {"stock": stock, "on": on}, mixes)
    a.seconds += a.more
    results.attempt(
        "churn",
        lambda: (
            lambda one, other, new: {
                "promoted_against_stock": heads(new, one),
                "stock_in_another_order": heads(other, one),
            }
        )(churn(engines, stock, "c0"), churn(engines, stock, "c1", backwards=True), churn(engines, on, "c2")),
    )
    results.put("done", True)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--builder", type=Path, required=True)
    p.add_argument("--set", type=Path, required=True, help="a kernel set's folder")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--ops", type=lambda s: s.split(","), help="of the set's ops, only these")
    p.add_argument("--dense", type=int, default=0, help="layers at the head without experts (default: the builder's)")
    p.add_argument("--batches", type=lambda s: [int(b) for b in s.split(",")], default=[1, 2, 4, 8, 16, 32, 64])
    p.add_argument("--seconds", type=float, default=300, help="since the start, after which no round by turns begins")
    p.add_argument("--more", type=float, default=60, help="seconds for what comes after the rounds")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--wait", type=Path, help="rounds by turns start once this file is there")
    p.add_argument("--damage", action="store_true")
    p.add_argument("--features", action="store_true")
    return p.parse_args(argv)


def main() -> int:
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    a, more = arguments(sys.argv[1:at]), sys.argv[at + 1 :]
    a.out.mkdir(parents=True, exist_ok=True)
    sizes = ["--batches", ",".join(map(str, a.batches)), "--engine"]
    limits = {"max_num_seqs": max(8, *a.batches), "gpu_memory_utilization": 0.1,
              "kv_cache_memory_bytes": (1 if a.damage or a.features else 3) << 30}  # fmt: skip
    builder, options = loaded(a.builder, [*sizes, json.dumps(limits), *more])
    part = "damage" if a.damage else "features" if a.features else "one"
    results = Results(a.out / f"{part}.json")
    engines = Engines(builder, options, a.dense)
    if a.damage:
        from support.vllm_damage import damage

        damage(a.set, a.out, engines, results, a.batches[0])
    elif a.features:
        from support.vllm_features import features

        features(a.set, a.out, engines, results)
    else:
        proof(a, engines, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
