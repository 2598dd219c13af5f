from faults.harness.case import Shown

SHOWN = (Shown(4, "builds/writes_outside", "compile", "compile.build"),)
