from faults.harness.case import Shown

SHOWN = (
    Shown(16, "numbers/writes_past_the_end", "unit-numeric", "numeric.guard"),
    Shown(16, "kernels/writes_past_the_end", "unit-numeric", "numeric.memory"),
)
