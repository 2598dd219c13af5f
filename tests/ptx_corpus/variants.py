"""Right variants of the right kernels: one place is otherwise, and no finding may come."""

from ptx_corpus.entries import Change

SYNC = "cute.arch.sync_threads()"
STORE = 'cute.arch.store(at, Int32(1), sem="release", scope="gpu")'
TICKET = 'ticket = cute.arch.atomic_add(count.iterator.llvm_ptr, Int32(1), sem="acq_rel", scope="gpu")'
FENCE = "cute.arch.fence_acq_rel_gpu()"

# fmt: off
VARIANTS = (
    Change("row_sum", "named", "a named barrier", SYNC, "cute.arch.barrier(barrier_id=3, number_of_threads=128)"),
    Change("tree_sum", "one_more", "a barrier more than needed",
           "    if t == 0:", f"    {SYNC}\n    if t == 0:"),
    Change("tail_sum", "mask", "shuffles of the lanes that are there, named by a mask",
           "    v = cute.arch.warp_reduction_sum(v)",
           "    v = cute.arch.warp_redux_sync(v, \"add\")"),
    Change("scale", "same_values", "CTAs overlap with equal values", "b * 64 + t", "b * 48 + t"),
    Change("rows", "long_rows", "reads the end of each row instead of its start",
           "source[b, t]", "source[b, t + 8] - source[b, t + 8] + source[b, t]"),
    Change("ring", "three_stages", "a third stage", "STAGES = 2", "STAGES = 3"),
    Change("ring", "wait_for_all", "waits for all groups", "wait_group(1)", "wait_group(0)"),
    Change("bulk", "wait_by_few", "one thread waits, the others at a barrier",
           "        cute.arch.mbarrier_wait(bar, row % 2)",
           f"        if t == 0:\n            cute.arch.mbarrier_wait(bar, row % 2)\n        {SYNC}"),
    Change("global_sum", "strong", "a stronger order than needed", 'sem="relaxed"', 'sem="acq_rel"'),
    Change("chain", "early", "the dependents are let go first",
           "    v = x[t] + 1\n", "    cute.arch.griddepcontrol_launch_dependents()\n    v = x[t] + 1\n"),
    Change("flag", "fence", "a fence and a relaxed store",
           STORE, f"{FENCE}\n            cute.arch.store(at, Int32(1), sem=\"relaxed\", scope=\"gpu\")"),
    Change("flag", "atomic", "the flag is raised by an atomic",
           STORE, 'cute.arch.atomic_add(at, Int32(1), sem="release", scope="gpu")'),
    Change("grid_barrier", "strong", "arrivals that also acquire", 'sem="release"', 'sem="acq_rel"'),
    Change("ticket", "fences", "fences around a relaxed ticket",
           TICKET, f"{FENCE}\n        {TICKET.replace('acq_rel', 'relaxed')}\n        {FENCE}"),
    Change("lock", "exchange", "an exchange for compare-and-swap",
           'atomic_cas(at, cmp=Int32(0), val=Int32(1), sem="acquire"', 'atomic_exch(at, Int32(1), sem="acquire"'),
    Change("warp_exchange", "barrier", "a barrier of the CTA for one of the warp",
           "cute.arch.sync_warp()  # neighbours have written", SYNC),
    Change("producer", "both_wait", "the producer waits too", "barrier_arrive(barrier_id=1", "barrier(barrier_id=1"),
    Change("pipeline", "one_arrival", "one lane arrives for the warp",
           "            cute.arch.mbarrier_arrive(full + stage)",
           "            cute.arch.sync_warp()\n            if lane == 0:\n"
           "                cute.arch.mbarrier_arrive(full + stage, arrive_count=32)"),
    Change("warp_exchange", "and_shuffle", "a shuffle after the barrier of the warp",
           "    v = room[t ^ 1]\n", "    v = room[t ^ 1] + cute.arch.shuffle_sync_bfly(x[t], offset=1) * 0\n"),
    Change("mma", "barrier", "a barrier of the CTA for one of the warp", "cute.arch.sync_warp()", SYNC),
    Change("bulk", "proxy_fence", "fence.proxy.async shows the mbarrier",
           "mbarrier_init_fence()", 'fence_proxy("async.shared", space="cta")'),
    Change("bulk", "shown_later", "another thread shows the mbarrier, after the barrier",
           "        cute.arch.mbarrier_init_fence()\n    cute.arch.sync_threads()\n",
           "    cute.arch.sync_threads()\n    if t == 0:\n"
           '        cute.arch.fence_proxy("async.shared", space="cta")\n'),
    Change("peers", "relaxed", "relaxed arrivals: the fence of the mbarrier is enough",
           "    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()  # all barriers",
           "    cute.arch.cluster_arrive_relaxed()\n    cute.arch.cluster_wait()  # all barriers"),
    Change("staged", "all_fence", "a fence of all spaces", '"async.global"', '"async"'),
    Change("staged", "reader_fence", "the thread that copies has the fence",
           '    cute.arch.fence_proxy("async.global")\n    if t == 0:\n        cute.arch.mbarrier_init(bar, 1)\n'
           "        cute.arch.mbarrier_init_fence()\n    cute.arch.sync_threads()\n    if t == 0:\n",
           "    if t == 0:\n        cute.arch.mbarrier_init(bar, 1)\n"
           "        cute.arch.mbarrier_init_fence()\n    cute.arch.sync_threads()\n    if t == 0:\n"
           '        cute.arch.fence_proxy("async.global")\n'),
    Change("flag", "fence_read", "a relaxed load and a fence",
           'sem="acquire", scope="gpu")\n',
           'sem="relaxed", scope="gpu")\n            cute.arch.fence_acq_rel_gpu()\n'),
    Change("half", "set_first", "set for all first, then for some",
           "    setp.lt.s32 p, {$r0}, 16;\n    @p mov.b32 v, {$r1};\n    @!p mov.b32 v, 7;\n",
           "    setp.lt.s32 p, {$r0}, 16;\n    mov.b32 v, 7;\n    @p mov.b32 v, {$r1};\n"),
    Change("count", "named", "a named barrier", "{$w0}, 0, p", "{$w0}, 3, 64, p"),
    Change("wgmma_loop", "one_fence", "one wgmma.fence for all: accumulators of one shape need no other",
           "    for half in cutlass.range(2, unroll=1):\n        warpgroup.fence()  # of this half\n",
           "    warpgroup.fence()\n    for half in cutlass.range(2, unroll=1):\n"),
    Change("store_bulk", "read_and_written", "waits until the row is written, not only read", "(0, read=True)", "(0)"),
    Change("cluster_read", "relaxed_end", "the last arrival tells nothing: nothing is read after it",
           "cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()  # both have read",
           "cute.arch.cluster_arrive_relaxed()\n    cute.arch.cluster_wait()  # both have read"),
    Change("peers", "early_wait", "all wait for all once more at the end",
           "    y[b, t] = got[t]\n",
           "    y[b, t] = got[t]\n    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()\n"),
)
# fmt: on
