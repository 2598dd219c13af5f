"""Fuzz one target for a time, in a process of its own, which run.py forks.

With Atheris the coverage of kgen's own functions decides which inputs are kept and changed again; without it, the seeds
are changed over and over. `<folder>/<target>.json` holds the counts, written anew twice a second, so that they outlive
the process; `<folder>/<target>/` the inputs that broke the property, one a signature.
"""

import hashlib
import importlib.util
import json
import os
import resource
import sys
import time
import types
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzz.guard import attempt
from fuzz.mutate import MOST, mutate
from fuzz.target import Target
from fuzz.targets import TARGETS

ADDRESS_SPACE = 8 << 30  # bytes: a bomb ends as MemoryError, and not as the machine's trouble
NATIVE = 0.4  # share of changes that are Atheris's own
GUIDING = (  # modules whose functions get counters: the parsers, and not what computes behind them
    *("kgen.records.", "kgen.store.", "kgen.proposers.", "kgen.gates.audit.", "kgen.gates.builder."),
    *(
        "kgen.gates.ingest",
        "kgen.gates.kit_results",
        "kgen.gates.screen",
        "kgen.gates.runner",
        "kgen.gates.ptx.",
        "kgen.model.generation.",
    ),
    *("kgen.model.nano.safetensors_file", "kgen.model.decoder.weights"),
)


@dataclass
class Count:
    """`last`: the input that is being tried, to be kept if the process dies of it."""

    target: Target
    folder: Path
    engine: str
    budget: float  # CPU seconds: a busy machine tries as much as a quiet one, only later
    started: float = field(default_factory=time.process_time)
    written: float = 0.0
    executions: int = 0
    crashes: dict[str, str] = field(default_factory=dict)

    def try_one(self, data: bytes) -> None:
        (self.folder / self.target.name / "last").write_bytes(data)
        crash = attempt(self.target, data)
        self.executions += 1
        if crash is not None and crash.signature not in self.crashes:
            name = hashlib.sha256(crash.signature.encode("utf-8", "replace")).hexdigest()[:12]
            (self.folder / self.target.name / name).write_bytes(data)
            self.crashes[crash.signature] = f"{name}: {crash.detail}"
        now = time.process_time()
        if now - self.written > 0.5 or crash is not None or now - self.started > self.budget:
            self.write()
        if now - self.started > self.budget:
            os._exit(0)  # Atheris knows no other way out that keeps the time

    def write(self) -> None:
        self.written = time.process_time()
        body = {
            "engine": self.engine,
            "executions": self.executions,
            "seconds": round(self.written - self.started, 1),
            "crashes": self.crashes,
        }
        text = json.dumps(body, indent=1).encode("utf-8", "backslashreplace")
        (self.folder / f"{self.target.name}.json").write_bytes(text)


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def instrument() -> None:
    """Counters in every function of the parsers that is loaded: once, before the forks. Without Atheris nothing."""
    if not has_atheris():
        return
    import atheris

    for name, module in list(sys.modules.items()):
        if not name.startswith(GUIDING) or ".families." in name:
            continue
        for value in list(vars(module).values()):
            inner = list(vars(value).values()) if isinstance(value, type) and value.__module__ == name else [value]
            for item in inner:
                function = getattr(item, "__func__", item)
                if isinstance(function, types.FunctionType) and function.__module__ == name:
                    atheris.instrument_func(function)


def _guided(target: Target, seed: int, count: Count) -> None:
    import atheris

    corpus = count.folder / target.name / "corpus"
    corpus.mkdir(exist_ok=True)
    for i, data in enumerate(target.seeds):
        (corpus / f"seed-{i}").write_bytes(data[:MOST])

    def change(data: bytes, most: int, number: int) -> bytes:
        rng = Random(number)
        if rng.random() < NATIVE:
            return bytes(atheris.Mutate(data, most))
        return mutate(target.shape, data, rng, target.seeds, target.words)[:most]

    options = [f"-max_len={MOST}", f"-seed={seed}", "-rss_limit_mb=0", "-timeout=3600"]
    quiet = ["-verbosity=0", "-print_final_stats=0", "-len_control=0", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([sys.argv[0], *options, *quiet, str(corpus)], count.try_one, custom_mutator=change)
    atheris.Fuzz()


def _plain(target: Target, seed: int, count: Count) -> None:
    rng = Random(seed)
    for data in target.seeds:
        count.try_one(data)
    while True:
        count.try_one(mutate(target.shape, rng.choice(target.seeds), rng, target.seeds, target.words))


def main(name: str, seconds: int, seed: int, folder: Path) -> None:
    """`seconds` of CPU time. Does not return."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    target = TARGETS[name]
    (folder / name).mkdir(parents=True, exist_ok=True)
    guided = has_atheris()
    count = Count(target, folder, "atheris" if guided else "mutation", seconds)
    (_guided if guided else _plain)(target, seed, count)
