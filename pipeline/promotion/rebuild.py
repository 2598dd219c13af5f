"""Rebuilding promoted sources with the real builder, for `verify`.

    verify(target, current, gate_rebuilder(registry))

Every source is built anew in a cache of its own: an answer from the user's cache would show nothing. Not covered:
rebuilding under the compiler release of the promotion when another one is installed.
"""

import tempfile
from pathlib import Path

from kgen.contract.op import Registry
from kgen.gates.audit.recorder import RecorderError
from kgen.gates.builder.pool import BuilderError
from kgen.gates.compile import CompileGate, compiler, same_code
from kgen.gates.sandbox.levels import NoSandboxError
from kgen.promotion.verify import Rebuilder, RebuildUnavailable
from kgen.records import BuildRecord, Candidate, Problem, Status
from kgen.store.errors import IntegrityError


def gate_rebuilder(registry: Registry) -> Rebuilder:
    """Raises RebuildUnavailable without a compiler."""

    def build(candidate: Candidate, problems: tuple[Problem, ...]) -> tuple[BuildRecord, ...]:
        return _build(registry, candidate, problems)

    try:
        return Rebuilder(compiler(), build, same_code)
    except BuilderError as error:
        raise RebuildUnavailable(str(error)) from error


def _build(registry: Registry, candidate: Candidate, problems: tuple[Problem, ...]) -> tuple[BuildRecord, ...]:
    try:
        op = registry.get(candidate.op)
    except ValueError as error:
        raise RebuildUnavailable(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="kgen-verify-") as folder:
        try:
            with CompileGate(op, Path(folder)) as gate:
                report = gate.run(candidate, problems)
        except (NoSandboxError, RecorderError, BuilderError) as error:
            raise RebuildUnavailable(str(error)) from error
    message = " ".join(report.result.message.split())
    if report.result.status is Status.FAIL:
        raise IntegrityError(f"the source does not build any more: {report.result.code}: {message}")
    if not report.result.passed:
        raise RebuildUnavailable(message)
    return tuple(artefact.record for artefact in report.artefacts)
