"""Symmetric buffers as a candidate of several ranks declares them: whether such memory can be. The audit's part of it.

Not covered: whether the kernel keeps the rules of a mailbox (the interpreter of several ranks shows that).
"""

from collections.abc import Sequence

from kgen.contract import Op
from kgen.contract.ranks import RankedOp
from kgen.gates.audit.object import AuditError
from kgen.gates.ranks.job import buffer
from kgen.gates.signature import RANK
from kgen.records import Problem, SymmetricBuffer

CODE = "audit.symmetric"
MAX_BYTES = 256 << 20  # of all buffers of one instance on one rank
Entry = tuple[str, str, tuple[int, ...], int, int | None]  # name, dtype, shape of a parity, parities, sentinel


def declared(op: Op, problem: Problem, entries: Sequence[Entry]) -> tuple[SymmetricBuffer, ...]:
    """What the build says was declared, checked. Raises AuditError."""
    found = tuple(SymmetricBuffer(*entry) for entry in entries)
    if found and not isinstance(op, RankedOp):  # the builder asks no candidate of one rank: a forged result
        raise AuditError(CODE, f"{op.name} is computed by one rank: it has no symmetric buffers")
    taken = {*(t.name for t in op.present(problem)), *(s.name for s in op.scalars), RANK, "stream"}
    total = 0
    for each in found:
        try:
            total += buffer(each).bytes
        except ValueError as error:
            raise AuditError(CODE, f"symmetric(): {error}") from None
        names = {each.name, f"{each.name}_peers"}
        if taken & names:
            raise AuditError(CODE, f"symmetric(): the name {sorted(taken & names)[0]!r} is another argument's")
        taken |= names
    if total > MAX_BYTES:
        raise AuditError(CODE, f"symmetric buffers exceed {MAX_BYTES} bytes a rank")
    return found
