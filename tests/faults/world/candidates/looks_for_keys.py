from faults.harness.case import Shown

SHOWN = (Shown(6, "builds/secrets", "compile", "compile.build"),)
