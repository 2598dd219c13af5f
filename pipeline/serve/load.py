"""`load` a promoted kernel for one point, or the stock op when anything at all is in doubt.

    kernel = kgen.serve.load("moe_shared", "dims-name", tokens=5, arch="sm_90a")
    values = {"m": m, "w_gate_up": w1, "w_down": w2, **kernel.outputs("cuda")}
    kernel(values)["y"]          # written in place; the same call with either path, inside a CUDA graph or not

`values` holds every tensor of the op by name, outputs and states included, and its scalars. Token rows are those of
`kernel.problem.tokens`, the bin that serves the true count: the caller pads with rows of any finite values and ignores
them afterwards. The kernel owns its workspaces: load once a layer, and do not run one loaded kernel on two streams.
A call allocates nothing on the promoted path. Scalars are baked into a CUDA graph when it is captured.

Doubts, each with one line in the log `kgen.serve`: no manifest or promotion, damage, a newer schema, an op contract
that has changed since, another GPU or none, no C compiler, no runtime library, KGEN_DISABLE=1, more tokens than the
largest bin. Not covered: whether the numbers are right on this GPU; that was the gates' work.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from kgen.contract import DTYPES, Op, Role, Values
from kgen.ops import REGISTRY
from kgen.records import Problem, Promotion
from kgen.serve.ranges import named
from kgen.store.cache import OBJECT_SUFFIX, linked_in, objects_in
from kgen.store.kernelset import KernelSet
from kgen.store.paths import cache_path, serving_sets

LOG = logging.getLogger("kgen.serve")
Run = Callable[[Values], None]
Counts = Callable[[], dict[str, int]]
Compile = Callable[..., Callable[..., object]]
ANY = -1  # a size that is known at run time only


class Doubt(Exception):
    """Why the promoted kernel is not used; one line."""


class Served:
    """One op at one point. `promoted` tells which path it takes, `reason` why it is the stock op ("" if it is not)."""

    def __init__(self, op: Op, problem: Problem, run: Run, reason: str, promotion: Promotion | None, counts: Counts):
        self.op, self.problem = op, problem
        self.reason, self.promotion = reason, promotion
        self._run, self._counts = run, counts
        self._range = f"kgen {problem.key}"  # in a profiler's timeline
        sizes = {**op.sizes(problem), **dict.fromkeys(op.runtime_dims, ANY)}
        self._tensors = tuple(
            (t.name, tuple(t.sizes(sizes)), getattr(torch, DTYPES[t.dtype].torch)) for t in op.present(problem)
        )
        self._written = tuple(t.name for t in op.outputs(problem))

    @property
    def promoted(self) -> bool:
        return self.promotion is not None

    def __call__(self, values: Values) -> dict[str, torch.Tensor]:
        """Run on the current stream; returns the tensors written (the caller's own: outputs and states).

        Raises ValueError (one line) for a tensor or scalar that is missing or of another shape or dtype.
        """
        for name, shape, dtype in self._tensors:
            tensor = values.get(name)
            if not isinstance(tensor, torch.Tensor) or tensor.dtype != dtype or not _fits(tensor.shape, shape):
                raise ValueError(_complaint(self.problem, name, shape, dtype, tensor))
        for scalar in self.op.scalars:
            if scalar.name not in values:
                raise ValueError(f"{self.problem.key}: scalar {scalar.name!r} is missing")
        if self.promoted:
            with named(self._range):
                self._run(values)
        else:
            self._run(values)
        return {name: values[name] for name in self._written}  # type: ignore[misc]  # checked to be tensors above

    def outputs(self, device: str | torch.device) -> dict[str, torch.Tensor]:
        """New, uninitialised output tensors by name (states are the caller's)."""
        wanted = {t.name for t in self.op.present(self.problem) if t.role is Role.OUT}
        return {n: torch.empty(s, dtype=d, device=device) for n, s, d in self._tensors if n in wanted}

    def counts(self) -> dict[str, int]:
        """Launches per kernel name since the object was loaded into this process; {} on the stock path.

        A launch captured into a CUDA graph counts once. Kernels loaded twice from the same object share the counter.
        """
        return self._counts()

    def launches(self) -> dict[str, int]:
        """Launches per kernel name that one call must make, by the build record; {} on the stock path."""
        return dict(self.promotion.launches[self.problem.key]) if self.promotion else {}


def load(
    op: str,
    dims: str,
    tokens: int,
    arch: str,
    *,
    set: str | Path | None = None,  # the name that commands use
    axes: Mapping[str, str] | None = None,
    compile: Compile | None = None,
) -> Served:
    """The kernel that serves `tokens` rows of `op` (true count; see `Served.problem.tokens` for the padded one).

    `set`: a kernel set's folder or `builtin`; default: `kgen.store.paths.serving_sets`. `compile` (torch.compile) is
    applied to the element-wise parts of the stock op. Raises ValueError only for what has no stock op either:
    an unknown op, dims or axis value, or less than one token.
    """
    contract = REGISTRY.get(op)
    if tokens < 1:
        raise ValueError(f"{op}: cannot serve {tokens} tokens")
    bins = contract.pack.bins
    problem = contract.problem(dims, next((b for b in bins if tokens <= b), bins[-1]), arch, axes)
    try:
        if tokens > bins[-1]:
            problem = Problem(op, dims, tokens, arch, problem.axes)
            raise Doubt(f"{tokens} tokens exceed the largest bin {bins[-1]}")
        return _promoted(contract, problem, set)
    # The boundary of a serving process: whatever is wrong with a kernel, its set, the linker or the driver, the
    # model must go on with the stock op.
    except Exception as error:  # noqa: BLE001
        reason = " ".join(str(error).split()) or type(error).__name__
        LOG.warning("%s: stock op, because %s", problem.key, reason)
        return Served(contract, problem, _stock(contract, problem, compile), reason, None, dict)


def _promoted(op: Op, problem: Problem, chosen: str | Path | None) -> Served:
    if os.environ.get("KGEN_DISABLE", "0") not in ("", "0"):
        raise Doubt("KGEN_DISABLE is set")
    kernels, promotion = _champion(problem, chosen)
    if promotion.op_contract != op.contract_sha256():
        raise Doubt(f"promotion #{promotion.seq} was proven under another contract of {op.name}")
    sha256 = promotion.objects[problem.key]
    data = kernels.object(sha256)
    if (here := device_capability()) != problem.arch.rstrip("af"):
        raise Doubt(f"this machine has {here or 'no CUDA GPU'}, the kernel needs {problem.arch}")
    run, counts = _launch(op, problem, promotion, data)
    return Served(op, problem, run, "", promotion, counts)


def _champion(problem: Problem, chosen: str | Path | None) -> tuple[KernelSet, Promotion]:
    """The first set that serves the problem. Damage in one is a doubt, not a reason to look further."""
    places = [place.path for place in serving_sets(chosen)]
    for path in places:
        kernels = KernelSet(path)
        champion = kernels.manifest().champion(problem.key)
        if champion is not None:
            return kernels, champion
    raise Doubt(f"no kernel is promoted for it in {', '.join(map(str, places))}")


def device_capability() -> str:
    """`sm_90` and so on for the current CUDA device, "" without one."""
    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _launch(op: Op, problem: Problem, promotion: Promotion, data: bytes) -> tuple[Run, Counts]:
    """Link and load the object; returns what runs it and what counts its launches."""
    from kgen.serve.launcher import Launcher  # only where there is something to launch
    from kgen.serve.link import link
    from kgen.serve.runtime import find_runtime

    cache, runtime = cache_path(), find_runtime()
    blobs = objects_in(cache)
    sha256 = blobs.put(data, OBJECT_SUFFIX)
    library = link(blobs.where(sha256, OBJECT_SUFFIX), sha256, linked_in(cache), runtime)
    launcher = Launcher(library, promotion.functions[problem.key], runtime)
    workspaces = [
        torch.zeros(shape, dtype=getattr(torch, DTYPES[dtype].torch), device="cuda")
        for dtype, shape in promotion.workspaces[problem.key]
    ]
    order = (*(t.name for t in op.present(problem)), *(s.name for s in op.scalars))

    def run(values: Values) -> None:
        launcher(*[values[name] for name in order], *workspaces)

    return run, launcher.counts


def _stock(op: Op, problem: Problem, compile: Compile | None) -> Run:
    stock = op.stock(problem, compile)

    def run(values: Values) -> None:
        for name, result in stock(values).items():
            values[name].copy_(result)  # type: ignore[union-attr]  # outputs are tensors

    return run


def _fits(got: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(got) == len(wanted) and all(w in (ANY, g) for g, w in zip(got, wanted, strict=True))


def _complaint(problem: Problem, name: str, shape: tuple[int, ...], dtype: torch.dtype, got: object) -> str:
    found = f"{tuple(got.shape)} {got.dtype}" if isinstance(got, torch.Tensor) else "missing"
    return f"{problem.key}: tensor {name!r} must be {shape} {dtype}, is {found}"
