from faults.harness.case import Shown

SHOWN = (Shown(5, "builds/network", "compile", "compile.build"),)
