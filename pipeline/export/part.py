"""What a publication carries: the promotions that serve some ops now, as a kernel set of its own, and the code below.

    part(kernels, ops) -> Part       raises NothingToExport (one line), IntegrityError for a damaged set
    serving_code() -> {path: bytes}

A part is a whole set for those ops: the manifest, sources, evidence, build records, raw samples and objects, unchanged,
so that `kgen verify` says of it what it says of the set it came from. Promotions that no longer serve are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kgen.gates.kit_modules import module_files
from kgen.ops import REGISTRY
from kgen.records import Manifest, Promotion
from kgen.store.documents import read_bytes
from kgen.store.kernelset import MANIFEST, OBJECTS, KernelSet, manifest_bytes, parse_problem

ENTRIES = ("kgen.serve.load", "kgen.serve.launcher", "kgen.serve.link", "kgen.store.served")
BUILTIN = "kgen/generated_kernels"


class NothingToExport(Exception):
    """The set serves nothing of what was asked for, or only under rules that no longer hold; one line."""


@dataclass(frozen=True)
class Part:
    """`files`: path inside the set -> bytes, each checked against the manifest."""

    manifest: Manifest
    files: Mapping[str, bytes]

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(sorted({p.arch for p in self.manifest.promotions}))

    @property
    def keys(self) -> tuple[str, ...]:
        """The problems that are served."""
        return tuple(self.manifest.champions)


def part(kernels: KernelSet, ops: Sequence[str] = ()) -> Part:
    """The part of a set that serves these ops now; all ops if none is named."""
    whole = kernels.manifest()
    champions = {k: seq for k, seq in whole.champions.items() if not ops or parse_problem(k).op in ops}
    chosen = tuple(p for p in whole.promotions if p.seq in set(champions.values()))
    for op in ops or ("any op",):
        if op not in {p.op for p in chosen} and not (chosen and not ops):
            raise NothingToExport(f"{kernels.root} serves no kernel of {op}: kgen promote puts one there")
    for promotion in chosen:
        if promotion.op_contract != REGISTRY.get(promotion.op).contract_sha256():
            text = f"promotion #{promotion.seq} was proven under another contract of {promotion.op}"
            raise NothingToExport(f"{text} and would serve nowhere; kgen status says how to measure it again")
    manifest = replace(whole, promotions=chosen, champions=champions)  # the history stays: it leads up to seq
    files = {MANIFEST: manifest_bytes(manifest)}
    for promotion in chosen:
        files |= _files(kernels, promotion)
    return Part(manifest, files)


def _files(kernels: KernelSet, promotion: Promotion) -> dict[str, bytes]:
    files = {
        promotion.source: kernels.read(promotion.source, promotion.source_sha256),
        promotion.evidence: kernels.read(promotion.evidence, promotion.evidence_sha256),
    }
    if promotion.builds:
        files[promotion.builds] = kernels.read(promotion.builds, promotion.builds_sha256)
    if promotion.raw:
        files[promotion.raw] = kernels.raw(promotion)
    for sha256 in promotion.objects.values():
        kernels.object(sha256)  # damage is found here, and not where it is served
        files[f"{OBJECTS}/{sha256}.o.xz"] = read_bytes(kernels.object_path(sha256))
    return files


def serving_code(more: Sequence[str] = ()) -> dict[str, bytes]:
    """`kgen/...` -> bytes of the modules that serving needs, unchanged: contracts are hashes of their text."""
    return module_files((*ENTRIES, *more))
