"""Right variants of the right kernels: one line is otherwise, and no finding may come."""

from ptx_corpus.entries import Change

SYNC = "cute.arch.sync_threads()"

VARIANTS = (
    Change("row_sum", "named", "a named barrier", SYNC, "cute.arch.barrier(barrier_id=3, number_of_threads=128)"),
    Change("scale", "same_values", "CTAs overlap with equal values", "b * 64 + t", "b * 48 + t"),
    Change("ring", "three_stages", "a third stage", "STAGES = 2", "STAGES = 3"),
    Change("ring", "wait_for_all", "waits for all groups", "wait_group(1)", "wait_group(0)"),
    Change("global_sum", "strong", "a stronger order than needed", 'sem="relaxed"', 'sem="acq_rel"'),
)
