"""The op contract: named tensors, inputs, references, rules and costs. Knows no particular model."""

from kgen.contract.op import Cost, Family, Op, Pack, Values
from kgen.contract.tensors import DTYPES, Role, ScalarSpec, TensorSpec
from kgen.contract.tolerance import Errors, compare, relative_l2

__all__ = [
    "DTYPES",
    "Cost",
    "Errors",
    "Family",
    "Op",
    "Pack",
    "Role",
    "ScalarSpec",
    "TensorSpec",
    "Values",
    "compare",
    "relative_l2",
]
