"""Whether a promotion was proven under the rules that hold now."""

from collections.abc import Mapping
from dataclasses import dataclass

from kgen.records import Promotion


@dataclass(frozen=True)
class Current:
    """The rules that hold now: each op's contract hash, and the gate contract's version."""

    op_contracts: Mapping[str, str]
    gate_contract: int


def staleness(op: str, op_contract: str, gate_contract: int, current: Current) -> str:
    """Why evidence under these rules is stale, one line; "" when it is fresh."""
    if op not in current.op_contracts:
        return f"this kgen has no op {op}"
    if op_contract != current.op_contracts[op]:
        return f"the contract of {op} has changed since"
    if gate_contract != current.gate_contract:
        return f"judged under gate contract {gate_contract}, now {current.gate_contract}"
    return ""


def stale(promotion: Promotion, current: Current) -> str:
    """Why a promotion is stale, one line; "" when it is fresh."""
    return staleness(promotion.op, promotion.op_contract, promotion.gate_contract, current)
