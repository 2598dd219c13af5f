"""Pure semantics of PTX instructions that touch registers only: `lookup` gives a function on raw bits, or None.

No memory, no control flow, no warp-wide or matrix instructions, no special registers; see `record` for the conventions.
"""

from kgen.gates.ptx.arith.record import Pure, fit, pack, unpack, width
from kgen.gates.ptx.arith.table import Supported, lookup, supported, table

__all__ = ["Pure", "Supported", "fit", "lookup", "pack", "supported", "table", "unpack", "width"]
