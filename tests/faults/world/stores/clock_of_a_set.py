from faults.harness.case import Kept

SHOWN = (
    Kept(28, "clock/promote_in_the_past", "whole"),
    Kept(28, "clock/runs_while_it_goes_back", "the newest"),
)
