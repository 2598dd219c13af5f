from faults.harness.case import Kept

SHOWN = (
    Kept(22, "damage/manifest_bits", "found"),
    Kept(22, "damage/object_exchanged", "found"),
    Kept(22, "damage/evidence_bits", "found"),
)
