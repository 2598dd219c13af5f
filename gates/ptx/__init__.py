"""A PTX interpreter: runs what the compiler emits on the CPU, with findings (memory, races, barriers)."""

from kgen.gates.ptx.budget import Limits
from kgen.gates.ptx.findings import Finding, Kind
from kgen.gates.ptx.launch import Buffer, Maps, Result, run
from kgen.gates.ptx.tokens import PtxError

__all__ = ["Buffer", "Finding", "Kind", "Limits", "Maps", "PtxError", "Result", "run"]
