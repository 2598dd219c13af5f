from faults.harness.case import Shown

SHOWN = (Shown(17, "kernels/races", "unit-numeric", "numeric.race"),)
