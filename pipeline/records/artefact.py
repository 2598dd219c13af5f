"""What the builder made of a candidate for one problem, as the audit sees it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kgen.records.codec import OPTIONAL
from kgen.records.core import Problem


@dataclass(frozen=True)
class Compiler:
    """The compiler release; another release gives other machine code."""

    SCHEMA: ClassVar[str] = "kgen.compiler/1"
    version: str
    flavour: str  # cu12 or cu13: which libraries of nvidia-cutlass-dsl


@dataclass(frozen=True)
class KernelFacts:
    """Facts of one kernel read from the cubin. Bytes unless said otherwise."""

    SCHEMA: ClassVar[str] = "kgen.kernel/1"
    name: str
    registers: int  # per thread
    stack_bytes: int  # per thread: spills and local arrays
    static_smem: int
    max_threads: int  # 0: not declared
    code_sha256: str  # of the kernel's .text section


@dataclass(frozen=True)
class LaunchArg:
    """One kernel parameter as the recorder saw it: a tensor (by name, with byte offset) or a raw 8-byte value."""

    SCHEMA: ClassVar[str] = "kgen.launch-arg/1"
    tensor: str  # "" for a scalar
    offset: int
    raw: str  # the 8 bytes read, hexadecimal


@dataclass(frozen=True)
class Launch:
    """One kernel launch of one call, recorded from the finished object without a GPU."""

    SCHEMA: ClassVar[str] = "kgen.launch/1"
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int  # bytes
    attributes: Mapping[str, int] = field(default_factory=dict)  # e.g. pdl=1, cooperative=1
    args: tuple[LaunchArg, ...] = ()


@dataclass(frozen=True)
class SymmetricBuffer:
    """Memory of an op of several ranks, as a candidate declares it (kgen.contract.ranks.Symmetric says what it is)."""

    SCHEMA: ClassVar[str] = "kgen.symmetric/1"
    name: str
    dtype: str
    shape: tuple[int, ...]  # of one parity
    parities: int
    sentinel: int | None


@dataclass(frozen=True)
class BuildRecord:
    """The audited artefact of one (candidate, problem)."""

    SCHEMA: ClassVar[str] = "kgen.build/1"
    candidate: str
    problem: Problem
    function: str  # the tvm-ffi function's name in the object
    object_sha256: str
    object_bytes: int
    cubin_sha256: str
    kernels: tuple[KernelFacts, ...]
    launches: tuple[Launch, ...]
    workspaces: tuple[tuple[str, tuple[int, ...]], ...]  # (dtype, shape) each, in argument order after the outputs
    compiler: Compiler
    isolation: str  # sandbox level, e.g. "bwrap/1"
    compile_seconds: float
    ptx: Mapping[str, Any] = field(default_factory=dict)  # counted facts: vector loads, no_allocate, mma, local
    design: str = ""  # the candidate's name for the algorithm it chose here
    defect: str = ""  # non-empty only for the mutation test's deliberately broken builds
    symmetric: tuple[SymmetricBuffer, ...] = field(default=(), metadata=OPTIONAL)  # of ops of several ranks alone

    def launch_counts(self) -> dict[str, int]:
        """Kernel -> launches of one call."""
        return dict(Counter(launch.kernel for launch in self.launches))
