#!/usr/bin/env python3
"""The plugin in a real vLLM on one GPU: runs a small model with and without it, and compares what the runs report.

    python3 vllm_proof.py --builder TINY.py --set FOLDER --out FOLDER [--batches 1,2,4,8] [--builder-args '...']

TINY.py builds a small random model in vLLM.LLM and takes --plugins NAMES, --additional JSON, --engine JSON, --batches
N,N, --no-profile and --out REPORT.json. A report holds `runs`: batch, tokens by request, step_s, and profile.events
(name, us, ts, half: which half of which layer) of one decode step. kgen must be importable there; where no distribution
has its entry point, one with nothing else is written beside the reports. Standard library only.

Shown: (a) without its key the plugin changes no token, kernel or count; (b) with it the promoted kernels are launched
layers times in a step, at every captured size that the record calls promoted, and nowhere else; (d) spans of the halves
of layers and host steps, before and after; (e) a set with a damaged or missing object, or none, gives the stock tokens
and one line. Of (c) only greedy tokens: equal heads against stock, beside stock against itself at another batch size.
Not shown: logits, sampling, speculation, long contexts, several ranks; two processes, so spans are not interleaved.
"""

import argparse
import importlib.metadata
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]
SAID = "kgen: stock op for"
SECONDS = 540  # of one run
COPIES = ("memcpy32_post", "Memcpy DtoD (Device -> Device)")  # the driver takes either, by the addresses


def by_batch(report: Report) -> dict[int, Mapping[str, Any]]:
    return {int(run["batch"]): run for run in report["runs"]}


def events(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((run.get("profile") or {}).get("events") or [])


def kernels(run: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    """(half of a layer, kernel) -> launches in the profiled step."""
    return Counter((e["half"], "a copy" if e["name"] in COPIES else e["name"]) for e in events(run))


def isolation(base: Report, off: Report, unsteady: Sequence[int] = ()) -> list[str]:
    """(a) What differs between a run without the plugin and one with it but without its key.

    `unsteady`: batch sizes at which stock does not give its own tokens again; those are not compared there.
    """
    lost = []
    for batch, run in by_batch(base).items():
        other = by_batch(off).get(batch)
        if other is None:
            lost.append(f"batch {batch}: not run with the plugin")
            continue
        if run["tokens"] != other["tokens"] and batch not in unsteady:
            lost.append(f"batch {batch}: other tokens")
        if not events(run) or not events(other):
            lost.append(f"batch {batch}: not profiled in both runs")
        change = (kernels(run) - kernels(other)) + (kernels(other) - kernels(run))
        lost += [f"batch {batch}: {half}: other count of {name}" for half, name in change]
    return lost


def trigger(on: Report, record: Report) -> list[str]:
    """(b) Where the promoted kernels of a profiled step are not those that the record promises."""
    lost = []
    for batch, run in by_batch(on).items():
        captured = record["captured"].get(str(batch))
        if captured is None:
            lost.append(f"batch {batch}: no captured graph in the record")
            continue
        seen = Counter(e["name"] for e in events(run))
        for op, seat in record["seats"].items():
            layers, calls = len(seat["layers"]), captured.get(op, {}).get("promoted", 0)
            if calls not in (0, layers):
                lost.append(f"batch {batch}: {op} promoted in {calls} of {layers} layers")
            lost += [f"batch {batch}: {line}" for line in _counted(op, seat, calls, batch, seen)]
    return lost


def _counted(op: str, seat: Mapping[str, Any], calls: int, batch: int, seen: Counter[str]) -> list[str]:
    """Each kernel of the bin that serves `batch`: calls times its launches of one call, in the profile."""
    size = next((b for b in sorted(map(int, seat["launches"])) if b >= batch), None)
    wanted = seat["launches"][str(size)]["per_call"] if size is not None else {}
    lost = []
    for name, per_call in wanted.items():
        found = seen[name] or sum(n for kernel, n in seen.items() if name in kernel)  # a profiler may decorate names
        if found != calls * per_call:
            lost.append(f"{op}: {name} launched {found} times, expected {calls} x {per_call}")
    if calls and not wanted:
        lost.append(f"{op}: the record names no kernel for {batch} tokens")
    return lost


def head(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common head."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def agreement(base: Report, on: Report) -> dict[str, dict[str, float]]:
    """(c) By batch: mean length of the common head against stock, and of stock against its own smallest batch."""
    smallest = min(by_batch(base))
    found = {}
    for batch, run in by_batch(base).items():
        pairs = list(zip(run["tokens"], by_batch(on)[batch]["tokens"], strict=True))
        own = head(by_batch(base)[smallest]["tokens"][0], run["tokens"][0])
        found[str(batch)] = {
            "tokens": float(len(run["tokens"][0])),
            "promoted_against_stock": statistics.mean(head(a, b) for a, b in pairs),
            "stock_against_itself": float(own),
        }
    return found


def span(found: Sequence[Mapping[str, Any]]) -> float:
    return max(e["ts"] + e["us"] for e in found) - min(e["ts"] for e in found) if found else 0.0


def halves(run: Mapping[str, Any]) -> dict[str, float]:
    """Half of a layer -> its span in microseconds."""
    names = dict.fromkeys(e["half"] for e in events(run))
    return {h: span([e for e in events(run) if e["half"] == h]) for h in names if h.startswith("layer")}


def times(base: Report, on: Report) -> dict[str, dict[str, float]]:
    """(d) By batch: the sum of the layers' spans and the median host step, before and after, in microseconds."""
    found = {}
    for batch, run in by_batch(base).items():
        after = by_batch(on)[batch]
        spans = [sum(halves(r).values()) for r in (run, after)]
        steps = [statistics.median(r["step_s"][2:] or [0.0]) * 1e6 for r in (run, after)]
        found[str(batch)] = {
            **dict(zip(("layers_before", "layers_after"), spans, strict=True)),
            **dict(zip(("step_before", "step_after"), steps, strict=True)),
            "layers_ratio": spans[0] / spans[1] if spans[1] else 0.0,
        }
    return found


def fallback(base: Report, run: Report, log: str) -> list[str]:
    """(e) What is wrong with a run whose set is broken: its tokens are stock's, and one line says why."""
    said = [line for line in log.splitlines() if SAID in line]
    lost = [] if len(said) == 1 else [f"{len(said)} lines say why"]
    return lost + [
        f"batch {b}: other tokens" for b, r in by_batch(run).items() if r["tokens"] != by_batch(base)[b]["tokens"]
    ]


def truncated(kernels_of: Path) -> None:
    for path in (kernels_of / "objects").iterdir():
        path.write_bytes(path.read_bytes()[:-9])


def without_objects(kernels_of: Path) -> None:
    shutil.rmtree(kernels_of / "objects")


def without_manifest(kernels_of: Path) -> None:
    (kernels_of / "manifest.json").unlink()


BREAKS: Mapping[str, Callable[[Path], None]] = {
    "a truncated object": truncated,
    "missing objects": without_objects,
    "no manifest": without_manifest,
}


def distribution(folder: Path) -> str:
    """A folder to put on PYTHONPATH: nothing but the entry point; "" where an installed kgen has it."""
    if any(e.name == "kgen" for e in importlib.metadata.entry_points(group="vllm.general_plugins")):
        return ""
    info = folder / "site" / "kgen_vllm_plugin-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kgen-vllm-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nkgen = kgen.serve.vllm:register\n")
    return str(info.parent.absolute())


class Runs:
    """Runs of the builder into one folder."""

    def __init__(self, builder: Path, out: Path, more: Sequence[str], python_path: str) -> None:
        self.builder, self.out, self.more = builder, out, list(more)
        paths = [p for p in (python_path, os.environ.get("PYTHONPATH", "")) if p]
        self.environ = {**os.environ, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}

    def run(self, name: str, *arguments: str) -> tuple[Report, str]:
        """A report and the log. Raises SystemExit, one line, where the builder fails."""
        report, log = self.out / f"{name}.json", self.out / f"{name}.log"
        command = [sys.executable, str(self.builder), *self.more, *arguments, "--out", str(report)]
        with log.open("w") as to:
            done = subprocess.run(command, env=self.environ, stdout=to, stderr=to, timeout=SECONDS, check=False)
        if done.returncode != 0 or not report.is_file():
            raise SystemExit(f"{name}: the builder ended with {done.returncode}; see {log}")
        return json.loads(report.read_text()), log.read_text()


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--builder", type=Path, required=True)
    p.add_argument("--set", type=Path, required=True, help="a kernel set's folder")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--batches", default="1,2,4,8,16,32,64")
    p.add_argument("--builder-args", default="", help="more arguments of every run, as one string")
    p.add_argument("--no-breaks", action="store_true", help="leave (e) out")
    return p.parse_args()


def main() -> int:
    a = arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    largest = max(int(b) for b in a.batches.split(","))
    common = ["--engine", json.dumps({"max_num_seqs": largest}), *shlex.split(a.builder_args)]
    runs = Runs(a.builder, a.out, common, distribution(a.out))

    def keyed(kernels_of: Path, name: str) -> list[str]:
        given = {"kgen": {"set": str(kernels_of.resolve()), "record": str((a.out / f"{name}.record.json").resolve())}}
        return ["--plugins", "kgen", "--additional", json.dumps(given)]

    base, _ = runs.run("base", "--batches", a.batches)
    off, _ = runs.run("off", "--batches", a.batches, "--plugins", "kgen")
    on, _ = runs.run("on", "--batches", a.batches, *keyed(a.set, "on"))
    record = json.loads((a.out / "on.record.json").read_text())
    found: dict[str, Any] = {
        "gpu": base["gpu"],
        "vllm": base["vllm"],
        "torch": base["torch"],
        "isolation": isolation(base, off),
        "trigger": trigger(on, record),
        "agreement": agreement(base, on),
        "times": times(base, on),
        "fallback": {},
        "record": record,
    }
    for what, break_it in {} if a.no_breaks else BREAKS.items():
        name = what.replace(" ", "-")
        copy = Path(shutil.copytree(a.set, a.out / f"set-{name}", dirs_exist_ok=True))
        break_it(copy)
        run, log = runs.run(name, "--batches", "1", "--no-profile", *keyed(copy, name))
        found["fallback"][what] = fallback(base, run, log)
    (a.out / "proof.json").write_text(json.dumps(found, indent=1))
    wrong = [*found["isolation"], *found["trigger"], *(f"{k}: {x}" for k, v in found["fallback"].items() for x in v)]
    print("\n".join(wrong or ["isolation, trigger and fallback as they should be"]))
    for batch, t in found["times"].items():
        print(
            f"batch {batch}: layers {t['layers_before']:.0f} -> {t['layers_after']:.0f} us, x{t['layers_ratio']:.2f}; "
            f"host step {t['step_before']:.0f} -> {t['step_after']:.0f} us"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
