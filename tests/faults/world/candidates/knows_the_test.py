from faults.harness.case import Shown

SHOWN = (
    Shown(14, "numbers/answers_for_known_seeds", "unit-numeric", "numeric.error"),
    Shown(14, "numbers/answers_by_shape", "unit-numeric", "numeric.error"),
)
