from faults.harness.case import Kept

SHOWN = (Kept(29, "alike/in_a_set", "both"),)
