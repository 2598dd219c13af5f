"""Builds the kernels as candidates are built: sandbox, audited object, recorded launches, PTX."""

import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ptx_truth.entries import ARCH, Case, Scalar
from support.builds import shared

from kgen.gates.audit import object as objects
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.builder import outcome
from kgen.records import Launch, sha256_bytes

WORKERS = 2


@dataclass(frozen=True)
class Made:
    """`launches`: of all calls of the case, in order. `code`: machine code's hash by kernel.

    An object's own hash also covers what a builder writes around the code; the comparison goes by code and PTX.
    """

    object: bytes
    ptx: str
    code: dict[str, str]
    launches: tuple[Launch, ...]
    workspaces: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def ptx_sha256(self) -> str:
        return sha256_bytes(self.ptx.encode())

    @property
    def object_sha256(self) -> str:
        return sha256_bytes(self.object)


def build(cases: Iterable[Case]) -> dict[str, Made]:
    """By key. Raises RuntimeError with the compiler's message for a kernel that does not compile."""
    found: dict[str, Made] = {}
    lock = threading.Lock()
    builder = shared()
    with tempfile.TemporaryDirectory() as cache:
        recorder = Recorder(builder.level, Path(cache))

        def one(case: Case) -> None:
            built = builder.build(case.source, case.signature)
            if not isinstance(built, outcome.Built):
                raise RuntimeError(f"{case.key} does not compile: {built.message}")
            cubin = objects.check(built.object, ARCH)
            launches = _launches(case, built, cubin, recorder)
            code = {k.name: k.code_sha256 for k in cubin.kernels}
            with lock:
                found[case.key] = Made(built.object, built.ptx, code, launches, built.workspaces)

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(one, cases))
    return found


def _launches(case: Case, built: outcome.Built, cubin: Cubin, recorder: Recorder) -> tuple[Launch, ...]:
    tensors = [Argument(n, t.dtype, t.array.shape) for n, t in case.tensors.items()]
    work = [Argument(f"workspace{i}", dtype, shape) for i, (dtype, shape) in enumerate(built.workspaces)]
    recorded: dict[tuple[Scalar, ...], tuple[Launch, ...]] = {}
    for call in case.calls:
        if call not in recorded:
            scalars = [Argument(s.name, s.dtype, None, s.value) for s in call]
            recorded[call] = recorder.record(built.object, cubin, [*tensors, *scalars, *work])
    return tuple(launch for call in case.calls for launch in recorded[call])
