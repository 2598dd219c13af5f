from faults.harness.case import Shown

SHOWN = (
    Shown(15, "numbers/plain_values_only", "unit-numeric", "numeric.error"),
    Shown(15, "numbers/not_a_number", "unit-numeric", "numeric.error"),
    Shown(15, "numbers/zeros_where_tiny", "unit-numeric", "numeric.error"),
    Shown(15, "numbers/full_bins_only", "unit-numeric", "numeric.padding"),
    Shown(15, "numbers/rows_mixed", "unit-numeric", "numeric.padding"),
)
