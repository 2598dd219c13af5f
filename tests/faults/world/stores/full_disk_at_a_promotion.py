from faults.harness.case import Kept

SHOWN = (
    Kept(21, "refused/promote_on_a_full_disk", "whole"),
    Kept(21, "refused/fill_a_run", "whole"),
)
