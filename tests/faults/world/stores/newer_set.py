from faults.harness.case import Kept

SHOWN = (
    Kept(23, "newer/manifest", "refused"),
    Kept(23, "newer/evidence", "refused"),
)
