"""Several ranks of one call in the PTX interpreter: their grids side by side, with memory that all ranks can reach."""

from kgen.gates.ptx.ranks.mailbox import Fault, Rule
from kgen.gates.ptx.ranks.run import RankResult, Shared, run
from kgen.gates.ptx.ranks.waits import Wait

__all__ = ["Fault", "RankResult", "Rule", "Shared", "Wait", "run"]
