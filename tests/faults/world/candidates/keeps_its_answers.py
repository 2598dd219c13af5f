from faults.harness.case import Shown

SHOWN = (
    Shown(12, "numbers/answers_by_pointer", "unit-numeric", "numeric.graph"),
    Shown(12, "numbers/answers_by_fingerprint", "unit-numeric", "numeric.error"),
    Shown(12, "numbers/honest_for_a_few_calls", "unit-numeric", "numeric.error"),
    Shown(12, "timing/honest_until_timed", "perf-sweep", "perf.wrong"),
)
