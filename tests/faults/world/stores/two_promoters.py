from faults.harness.case import Kept

SHOWN = (Kept(20, "rivals/two_promoters", "whole"),)
