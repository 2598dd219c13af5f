from faults.harness.case import Shown

SHOWN = (
    Shown(10, "builds/forged_object", "compile", "audit.elf"),
    Shown(10, "launcher/prints", "compile", "audit.launcher"),
)
