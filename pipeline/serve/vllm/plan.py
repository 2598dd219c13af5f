"""A model's plan: what was asked for, what each stage refuses, what sits where. All ranks decide alike.

Stages in order: `check_config` before the model is built, `seat` once its weights are loaded, `check_caches` for each
KV cache that is bound, `captured` after graphs were captured. Each stage makes the same number of votes on every rank,
whatever it found, so that no rank waits for another. `prepared` comes before each step: the run that vLLM makes before
it captures a decode graph is a rehearsal, with the kernels of the capture. `KGEN_DISABLE=1` refuses everything and
never fails start-up.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kgen.ops import PACK, REGISTRY
from kgen.records import Problem
from kgen.serve.vllm import FAULTS, routing
from kgen.serve.vllm.guards import (
    Refusal,
    Refused,
    Stage,
    cache_refusals,
    config_refusals,
    message,
    site_refusals,
)
from kgen.serve.vllm.host import Host, serving
from kgen.serve.vllm.kernels import Call, Kernels, arch_of, fitting_dims, held, load_all, trial
from kgen.serve.vllm.record import Record, default_path, launches, rank_path, write
from kgen.serve.vllm.seats import OPS, SEATS, Site, Undo, sites
from kgen.serve.vllm.settings import Settings, parse
from kgen.store import IntegrityError, StoreError

LOG = logging.getLogger("vllm.kgen")
BROKEN = (*FAULTS, StoreError, IntegrityError)  # what a damaged set, or an unknown layer, makes of a stage
DISABLED = "KGEN_DISABLE is set"


def plan_for(vllm_config: Any, host: Host | None = None) -> "Plan | None":
    """None without settings of kgen's own. Raises SettingsError, and Refused under `refuse`; one line each."""
    settings = parse(vllm_config.additional_config, OPS)
    if settings is None:
        return None
    plan = Plan(settings, host or serving())
    plan.check_config(vllm_config)
    return plan


class Plan:
    """`refusals` in the order in which they were found; `kernels` and `layers` of the ops that are seated."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self.settings, self.host = settings, host
        self.refusals: list[Refusal] = []
        self.record = Record()
        self.kernels: dict[str, Kernels] = {}
        self.layers: dict[str, list[int]] = {}
        self._problems: list[Problem] = []
        self._arch = ""
        self._rehearsing = False
        self._wanted: tuple[str, ...] = ()
        self._seated: dict[str, list[tuple[Site, dict[str, tuple[int, ...]], Undo]]] = {}

    # --- stages

    def check_config(self, vllm_config: Any) -> None:
        found = [Refusal(Stage.CONFIG, "", DISABLED)] if _disabled() else self._configured(vllm_config)
        everywhere = any(not r.op for r in found)
        fine = {op for op in self._wanted if not everywhere and all(r.op != op for r in found)}
        self._wanted = self._agreed(Stage.CONFIG, found, fine)

    def seat(self, model: Any) -> None:
        """Load, try and seat. Called once."""
        if self.settings.routing and self.host.rank == 0:  # all ranks choose the same experts
            routing.record(model, Path(self.settings.routing), lambda: self.host.decoding() or routing.capturing())
        found: list[Refusal] = []
        ready: dict[str, tuple[Kernels, list[Site]]] = {}
        for op in self._wanted:
            try:
                refused, kernels, at = self._prepare(op, model)
            except BROKEN as error:
                found.append(Refusal(Stage.WEIGHTS, op, _line(error)))
                continue
            found += refused
            if kernels.by_bin:
                ready[op] = (kernels, at)
        votes = [(op, b) for op in OPS for b in PACK.bins]
        mine = [op in ready and b in ready[op][0].by_bin for op, b in votes]
        ours = self.host.agree(mine)
        for op, (kernels, at) in ready.items():
            lost = [b for (o, b), m, o_all in zip(votes, mine, ours, strict=True) if o == op and m and not o_all]
            found += [Refusal(Stage.WEIGHTS, op, f"{b} tokens: another rank refuses it") for b in lost]
            if left := kernels.without(lost).by_bin:
                self._take(Kernels(kernels.op, kernels.dims, left), at)
        self._close(found)

    def check_caches(self) -> None:
        """Called at each bind: for the cache of the memory profile, and for the real one."""
        self.record.clear()
        found = [
            refusal
            for placed in self._seated.values()
            for site, shapes, _ in placed
            for refusal in cache_refusals(site, shapes)
        ]
        fine = {op for op in self._seated if all(r.op != op for r in found)}
        kept = self._agreed(Stage.CACHES, found, fine)
        for op in [op for op in self._seated if op not in kept]:
            self.give_up(op)

    def prepared(self, for_capture: bool) -> None:
        """A step is about to run. `for_capture`: it is captured into a decode graph, or is the run before that.

        That run has to meet what the capture meets: stock code behind a seat compiles and tunes itself for the
        strides that it sees first, which a capture does not allow.
        """
        self._rehearsing = for_capture

    def captured(self) -> None:
        """Write the record and say in one line what the captured graphs run."""
        self._rehearsing = False
        path = rank_path(Path(self.settings.record or default_path()), self.host.rank, self.host.ranks)
        try:
            write(path, self.as_json())
            where = f"record in {path}"
        except StoreError as error:
            where = f"no record: {_line(error)}"
        if self.host.rank == 0:
            LOG.info("kgen: %s; %s", self.record.line(), where)

    def give_up(self, op: str) -> None:
        """Stock again in every layer; graphs that are captured already keep what they hold."""
        for _, _, undo in self._seated.pop(op, []):
            undo()
        self.kernels.pop(op, None)
        self.layers.pop(op, None)

    def as_json(self) -> dict[str, object]:
        return {
            "vllm": self.host.version,
            "arch": self._arch,
            "rank": self.host.rank,
            "ranks": self.host.ranks,
            "set": self.settings.set,
            "fallback": self.settings.fallback,
            "refusals": [{"stage": str(r.stage), "op": r.op, "reason": r.reason} for r in self.refusals],
            "seats": {
                op: {
                    "layers": self.layers[op],
                    "dims": k.dims,
                    "tokens": sorted(k.by_bin),
                    "launches": launches(k.by_bin),
                }
                for op, k in self.kernels.items()
            },
            "captured": self.record.counts(),
            "outside_decode_graphs": dict(self.record.outside),
        }

    # --- parts of them

    def _configured(self, vllm_config: Any) -> list[Refusal]:
        """Reads the set, too: what it holds for this GPU is part of the configuration."""
        found = config_refusals(vllm_config)
        try:
            self._problems = held(self.settings.set)
            self._arch = arch_of(self._problems, self.host.capability)
            return found + self._choose()
        except BROKEN as error:
            return [*found, Refusal(Stage.CONFIG, "", _line(error))]

    def _choose(self) -> list[Refusal]:
        """Sets `_wanted`; refuses what was asked for by name and is not held."""
        have = {p.op for p in self._problems if p.arch == self._arch} if self._arch else set()
        self._wanted = tuple(op for op in OPS if op in have and op in (self.settings.ops or OPS))
        gpu = self.host.capability or "no CUDA GPU"
        if self.settings.ops is None:
            return [] if self._wanted else [Refusal(Stage.CONFIG, "", f"the set holds no kernel with a seat ({gpu})")]
        missing = [op for op in self.settings.ops if op not in have]
        return [Refusal(Stage.CONFIG, op, f"the set holds no kernel for it ({gpu})") for op in missing]

    def _prepare(self, op: str, model: Any) -> tuple[list[Refusal], Kernels, list[Site]]:
        """Guards of every layer, then kernels for the sizes found there, then one trial of each."""
        contract = REGISTRY.get(op)
        at = sites(model, [op])[op]
        nothing = Kernels(contract, "", {})
        if not at:
            return [Refusal(Stage.WEIGHTS, op, "no layer of this model has a seat for it")], nothing, at
        refused = [r for site in at for r in site_refusals(site, self.host.device)]
        shapes = [{name: tuple(w.shape) for name, w in site.weights().items()} for site in at] if not refused else []
        if any(s != shapes[0] for s in shapes):
            refused.append(Refusal(Stage.WEIGHTS, op, "its layers differ in size"))
        if refused:
            return refused, nothing, at
        kernels = nothing
        failed: dict[int, str] = {}
        for dims in fitting_dims(contract, shapes[0]):  # names of equal sizes: the first that is held
            kernels, failed = load_all(contract, dims, self._arch, self.settings.set, self._problems)
            if kernels.by_bin or failed:
                break
        if not kernels.by_bin and not failed:
            return [Refusal(Stage.WEIGHTS, op, "the set holds no kernel for its size here")], kernels, at
        with torch.inference_mode():
            tried = {b: trial(k, at[0].weights, self.host.device) for b, k in kernels.by_bin.items()}
        failed |= {b: reason for b, reason in tried.items() if reason}
        refused = [Refusal(Stage.WEIGHTS, op, f"{b} tokens: {reason}") for b, reason in sorted(failed.items())]
        return refused, kernels.without(list(failed)), at

    def _take(self, kernels: Kernels, at: Sequence[Site]) -> None:
        op = kernels.op.name
        self.kernels[op], self.layers[op] = kernels, [site.layer for site in at]
        self._seated[op] = []
        for site in at:
            shapes = {name: tuple(w.shape) for name, w in site.weights().items()}
            call = Call(kernels, site.weights, self._promoting, self._note)
            self._seated[op].append((site, shapes, SEATS[op].take(site, call)))

    def _promoting(self) -> bool:
        return self._rehearsing or self.host.decoding()

    def _note(self, op: str, tokens: int, reason: str) -> None:
        if not self._rehearsing or self.host.decoding():
            self.record.note(op, tokens, reason)

    def _agreed(self, stage: Stage, found: list[Refusal], fine: set[str]) -> tuple[str, ...]:
        """One vote an op; those fine on every rank. Adds what the others refuse, and closes the stage."""
        ours = dict(zip(OPS, self.host.agree([op in fine for op in OPS]), strict=True))
        found += [Refusal(stage, op, "another rank refuses it") for op in OPS if op in fine and not ours[op]]
        self._close(found)
        return tuple(op for op in OPS if op in fine and ours[op])

    def _close(self, found: list[Refusal]) -> None:
        """Keeps a stage's refusals: all in one line, an error under `refuse`."""
        self.refusals += found
        if not found:
            return
        if self.settings.fallback == "refuse" and not _disabled():
            raise Refused(f"kgen refuses: {message(self.refusals)}")
        LOG.warning("kgen: stock op for %s", message(found))


def _disabled() -> bool:
    return os.environ.get("KGEN_DISABLE", "0") not in ("", "0")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
