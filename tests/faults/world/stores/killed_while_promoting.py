from faults.harness.case import Kept

SHOWN = (
    Kept(19, "kill/promote_into_nothing", "whole"),
    Kept(19, "kill/promote_beside_a_champion", "whole"),
    Kept(19, "kill/roll_back", "whole"),
)
