"""The kernels that are compared: of the corpus with inputs of their own, of `kernels/`, promoted, and of the search."""

import ast
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ptx_corpus.cases import CASES as CORPUS
from ptx_corpus.entries import KERNELS as CORPUS_KERNELS
from ptx_truth import bounds
from ptx_truth.entries import ARCH, CUTLASS, Array, Bound, Case, Scalar, Tensor, bf16, poisoned

from kgen.contract import Op
from kgen.gates.builder.protocol import Signature
from kgen.gates.signature import signature
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, render
from kgen.records import Promotion
from kgen.store.kernelset import KernelSet

OWN = Path(__file__).with_name("kernels")
SET = Path(__file__).parents[2] / "generated_kernels"
SERVED = "moe_shared/k3-tp8/t1/sm_90a"
PERIOD = 262_147  # elements after which a large input repeats: prime, so that no row or tile is like another


def generator(key: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(key.encode()))


def wide(rng: np.random.Generator, shape: tuple[int, ...], spread: int = 8) -> Array:
    """Float32 of both signs over 2 `spread` powers of two."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape)).astype(np.float32)


def plain(tensors: Mapping[str, Tensor]) -> Signature:
    shapes = tuple((CUTLASS[t.dtype], t.array.shape) for t in tensors.values())
    return Signature({}, 1, ARCH, shapes, (), tuple(tensors), 0)


def of_corpus(
    key: str, kernel: str, kind: str, bound: Mapping[str, Bound], given: Mapping[str, Callable[..., Array]]
) -> Case:
    """A right kernel of the corpus; floats are drawn over many powers of two instead of its small whole numbers."""
    entry, rng = CORPUS[kernel], generator(key)
    tensors = {}
    for name, (role, array) in entry.tensors.items():
        if name in given:
            new = given[name](rng)
        elif role == "out":
            new = poisoned(entry.dtype(name), array.shape)
        elif role == "workspace":
            new = np.zeros_like(array)
        elif array.dtype == np.float32:
            new = wide(rng, array.shape)
        elif array.dtype == np.uint16:
            new = bf16(wide(rng, array.shape))
        else:
            new = rng.integers(-(2**20), 2**20, array.shape).astype(array.dtype)
        tensors[name] = Tensor(role, np.ascontiguousarray(new))
    source = (CORPUS_KERNELS / f"{kernel}.py").read_text(encoding="utf-8")
    return Case(key, kind, source, plain(tensors), tensors, tuple(entry.want), ((),) * entry.calls, bound)


def own(key: str, kind: str, bound: Mapping[str, Bound], draw: Callable[..., Mapping[str, Tensor]]) -> Case:
    """A kernel of `kernels/`."""
    tensors = dict(draw(generator(key)))
    source = (OWN / f"{key}.py").read_text(encoding="utf-8")
    outputs = tuple(n for n, t in tensors.items() if t.role in ("out", "state"))
    return Case(key, kind, source, plain(tensors), tensors, outputs, ((),), bound)


def constant(kernel: str, name: str) -> tuple[str, ...]:
    """A tuple of texts that a kernel's file defines."""
    tree = ast.parse((OWN / f"{kernel}.py").read_text(encoding="utf-8"))
    found = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name]
    return tuple(ast.literal_eval(found[0]))


FUNCTIONS, PAIRS = constant("approximate", "FUNCTIONS"), constant("approximate", "PAIRS")


def approximate_inputs(rng: np.random.Generator) -> Mapping[str, Tensor]:
    """Arguments for each function where its error is documented."""
    n = 1024
    ex2, tanh, angle = rng.uniform(-126, 127, n), wide(rng, (n,), 4), rng.uniform(-6.28, 6.28, n)
    positive, near_one = np.abs(wide(rng, (n,), 60)) + np.float32(2.0**-100), rng.uniform(0.5, 2, n)
    lg2 = np.where(rng.random(n) < 0.5, near_one, positive)
    rows = [ex2, ex2 / 4, wide(rng, (n,), 60), wide(rng, (n,), 30), positive, positive, lg2, tanh, angle, angle]
    return {
        "x": Tensor("in", np.stack(rows).astype(np.float32)),
        "y": Tensor("out", poisoned("f32", (len(FUNCTIONS) + len(PAIRS), n))),
    }


def mxfp4_inputs(rng: np.random.Generator) -> Mapping[str, Tensor]:
    """All codes beside all others, and every scale that gives a normal float32."""
    return {
        "w": Tensor("in", rng.integers(-(2**31), 2**31, (64, 4)).astype(np.int32)),
        "scale": Tensor("in", (np.arange(64) * 3 + 30).astype(np.int32)),
        "y": Tensor("out", poisoned("f32", (64, 32))),
        "z": Tensor("out", poisoned("i32", (64, 16))),
    }


def atomic_inputs(rng: np.random.Generator) -> Mapping[str, Tensor]:
    return {"x": Tensor("in", wide(rng, (16, 128))), "y": Tensor("state", wide(rng, (32,)))}


def tensor_store_inputs(rng: np.random.Generator) -> Mapping[str, Tensor]:
    return {
        "x": Tensor("in", rng.integers(0, 2**16, (128, 64)).astype(np.uint16)),
        "y": Tensor("out", poisoned("bf16", (128, 64))),
    }


def values_of(op: Op, problem: Any, family: str) -> tuple[dict[str, Tensor], tuple[Scalar, ...]]:
    """The op's own inputs; large ones repeat a prefix, so that they fit into the file that is carried."""
    sizes, values = op.sizes(problem), op.inputs(problem, family, 7, "cpu")
    tensors = {}
    for spec in op.present(problem):
        shape = spec.sizes(sizes)
        if spec.name not in values:
            array = poisoned(spec.dtype, shape)
        else:
            given = values[spec.name]
            assert isinstance(given, torch.Tensor)
            array = (given.view(torch.int16).numpy().view(np.uint16) if spec.dtype == "bf16" else given.numpy()).copy()
            if array.size > 4 * PERIOD:
                array = np.resize(array.reshape(-1)[:PERIOD], shape)
        tensors[spec.name] = Tensor(spec.role.value, array)
    return tensors, tuple(Scalar(s.name, s.dtype, float(values[s.name])) for s in op.scalars)


def of_op(key: str, kind: str, source: str, name: str, dims: str, tokens: int, **more: Any) -> Case:
    """A kernel for an op. `calls`: scalars by name that each call changes; `bounds`: of outputs."""
    op = REGISTRY.get(name)
    problem = op.problem(dims, tokens, ARCH)
    tensors, scalars = values_of(op, problem, more.get("family", "normal"))
    calls = tuple(
        tuple(Scalar(s.name, s.dtype, changed.get(s.name, s.value)) for s in scalars)
        for changed in more.get("calls", ({},))
    )
    outputs = tuple(n for n, t in tensors.items() if t.role in ("out", "state"))
    return Case(key, kind, source, signature(op, problem), tensors, outputs, calls, more["bounds"])


def champion() -> Promotion:
    manifest = KernelSet(SET).manifest()
    return next(p for p in manifest.promotions if p.seq == manifest.champions[SERVED])


def promoted(key: str, dims: str, tokens: int, slices: tuple[int, int], kind: str) -> Case:
    """`slices`: parts of K in gate_up and in down, of warps and CTAs."""
    source = KernelSet(SET).source(champion())
    chains = bounds.Chain(bounds.MMA, slices[0], 32, 2), bounds.Chain(bounds.MMA, slices[1], 32, 2)
    why = (
        f"{chains[0].words('mma')}; SiTU by ex2, rcp and fused products within {bounds.SITU_ERROR:.2g}: "
        "what may round otherwise to bf16 in gate_up, h and y"
    )
    bound = Bound(why, partial(bounds.moe_shared, chains))
    return of_op(key, kind, source, "moe_shared", dims, tokens, bounds={"y": bound})


def searched_attn_res(key: str) -> Case:
    calls = ((1, 1), (0, 0), (2, -1))
    why = "rsqrt and ex2, fused products, float32 sums: what may round otherwise to bf16; prefix and blocks are exact"
    kind = "in-place state, scalars, approximate functions"
    source = (OWN / "attn_res.py").read_text(encoding="utf-8")  # a point of `search` when the GPU was asked
    same = {"eps": bounds.EPSILON, "eps_out": bounds.EPSILON}
    scalars = tuple({"nb": float(nb), "write_idx": float(write), **same} for nb, write in calls)
    bound = Bound(why, partial(bounds.attn_res, calls))
    return of_op(key, kind, source, "attn_res", "nano", 4, calls=scalars, bounds={"out": bound})


def searched_projection(key: str, kind: str, chain: bounds.Chain | None) -> Case:
    bound = {}
    if chain is not None:
        why = f"{chain.words('mma')}: what may round otherwise to bf16"
        bound = {"p": Bound(why, partial(bounds.projection, "x", "w_in", chain))}
    first = next(v for v in FAMILIES["kda_in_proj"].known if v.template == f"{key}.py.tmpl")
    return of_op(key, kind, render(first), "kda_in_proj", "nano", 4, bounds=bound)


def _words(rows: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: bf16(wide(rng, (rows, 16))).view(np.int32)


def _red_addends(values: Mapping[str, Array]) -> Array:
    return np.concatenate([values["y"][None], values["x"]])


def _atomic_addends(values: Mapping[str, Array]) -> Array:
    return np.concatenate([values["y"][None], values["x"].reshape(64, 32)])


def _corpus() -> dict[str, Callable[[], Case]]:
    """Kernels of the corpus that must agree to the bit."""
    below = {"histogram": {"x": lambda rng: rng.integers(0, 32, 256).astype(np.int32)}}
    indices = {
        "scatter": {"slot": lambda _: np.array([3, 1, 0], np.int32)},
        "gather": {"table": lambda _: np.array([3, -1, 1, 2], np.int32)},
        "lock": {"y": lambda _: np.array([40], np.int32)},
    }
    given: dict[str, dict[str, Callable[..., Array]]] = {**below, **indices}
    kinds = {
        "ring": "cp.async ring of two stages",
        "bulk": "bulk copy into shared memory, mbarrier phases",
        "box": "tensor copy (TMA) into shared memory, swizzled",
        "store_bulk": "bulk copy out of shared memory",
        "pipeline": "producer and consumer warps, mbarriers",
        "row_sum": "sum in shared memory and by shuffles, float",
        "tree_sum": "tree sum in shared memory, float",
        "tail_sum": "partial warp, integer",
        "transpose": "shared memory transpose",
        "swizzle": "shared memory transpose, swizzled by hand",
        "vector": "vector loads and stores",
        "scan": "prefix sum by shuffles",
        "histogram": "integer atomics in shared memory",
        "global_sum": "integer atomics in global memory, two launches, redux",
        "ticket": "last CTA by an atomic ticket, state over calls",
        "lock": "spin lock, compare-and-swap",
        "grid_barrier": "barrier of the grid, acquire and release",
        "chain": "two launches with programmatic dependent launch",
        "flag": "release and acquire through a flag between CTAs",
        "cluster_read": "cluster of two, reads of distributed shared memory",
        "peers": "cluster of four, asynchronous stores into distributed shared memory",
        "state": "in-place state over calls",
        "scatter": "in-place rows by index",
        "gather": "rows by index, absent ones zero",
    }
    return {key: partial(of_corpus, key, key, kind, {}, given.get(key, {})) for key, kind in kinds.items()}


MAKERS: Mapping[str, Callable[[], Case]] = {
    "moe_shared_t1": partial(promoted, "moe_shared_t1", "nano", 1, (8, 2), "promoted: mma, cluster, cp.async, PDL"),
    "moe_shared_t4": partial(promoted, "moe_shared_t4", "nano", 4, (8, 2), "promoted: mma, cluster, cp.async, PDL"),
    "moe_shared_t16": partial(promoted, "moe_shared_t16", "nano", 16, (8, 2), "promoted: mma, cluster, cp.async, PDL"),
    "moe_shared_k3_t1": partial(
        promoted, "moe_shared_k3_t1", "k3-tp8", 1, (7, 2), "promoted at served sizes: mma, bulk copies, PDL"
    ),
    "attn_res": partial(searched_attn_res, "attn_res"),
    "projection_mma": partial(
        searched_projection, "projection_mma", "searched: mma from registers, PDL",
        bounds.Chain(bounds.MMA, 8, 32, 2),
    ),
    "projection_fma": partial(searched_projection, "projection_fma", "searched: fma and shuffles, PDL", None),
    **_corpus(),
    "mma": partial(
        of_corpus, "mma", "mma", "ldmatrix and mma.sync, bf16",
        bounds.of_matrix("mma", bounds.Chain(bounds.MMA, 1, 16, 1), words=True), {"a": _words(16), "b": _words(8)},
    ),
    "mma_whole": partial(
        of_corpus, "mma_whole", "mma", "ldmatrix and mma.sync, sums that are exact", {},
        {n: lambda rng, r=r: bf16(rng.integers(-50, 50, (r, 16))).view(np.int32) for n, r in (("a", 16), ("b", 8))},
    ),
    "wgmma": partial(
        of_corpus, "wgmma", "wgmma", "wgmma from swizzled shared memory, bf16",
        bounds.of_matrix("wgmma", bounds.Chain(bounds.WGMMA, 1, 16, 1)), {},
    ),
    "wgmma_whole": partial(
        of_corpus, "wgmma_whole", "wgmma", "wgmma from swizzled shared memory, sums that are exact", {},
        {n: lambda rng: bf16(rng.integers(-50, 50, (64, 64))) for n in ("a", "b")},
    ),
    "red_vector": partial(
        of_corpus, "red_vector", "red_vector", "vector reductions (red.v4.f32) of two CTAs",
        bounds.of_sums(_red_addends, 3), {},
    ),
    "atomic_add": partial(
        own, "atomic_add", "float atomics in shared and global memory", bounds.of_sums(_atomic_addends, 65),
        atomic_inputs,
    ),
    "tensor_store": partial(
        own, "tensor_store", "tensor copy (TMA) out of swizzled shared memory", {}, tensor_store_inputs
    ),
    "mxfp4": partial(own, "mxfp4", "MXFP4 decoded by bits, E8M0 scales, prmt", {}, mxfp4_inputs),
    "approximate": partial(
        own, "approximate", "approximate functions",
        {"y": Bound("the errors that the ISA documents", partial(bounds.approximate, FUNCTIONS, PAIRS))},
        approximate_inputs,
    ),
}  # fmt: skip


def make(key: str) -> Case:
    return MAKERS[key]()
