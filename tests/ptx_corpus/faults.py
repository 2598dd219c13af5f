"""The broken kernels: a one-line change of a right one each, with the finding that must come."""

from ptx_corpus.entries import NUMBERS, Change

from kgen.gates.ptx import Kind

RACE, BARRIER, BOUNDS, UNSET = Kind.RACE, Kind.BARRIER, Kind.OUT_OF_BOUNDS, Kind.UNINITIALISED
ASYNC, DEADLOCK = Kind.ASYNC, Kind.DEADLOCK
SYNC = "cute.arch.sync_threads()"

FAULTS = (
    Change("row_sum", "no_barrier", "missing barrier", SYNC, "pass", RACE, "shared"),
    Change(
        "row_sum",
        "barrier_count",
        "wrong barrier count",
        SYNC,
        "cute.arch.barrier(barrier_id=1, number_of_threads=160)",
        BARRIER,
    ),
    Change(
        "row_sum",
        "divergent_barrier",
        "divergent barrier",
        SYNC,
        "if t < 64:\n        cute.arch.sync_threads()",
        BARRIER,
        also=(RACE,),
    ),
    Change(
        "row_sum",
        "one_part_too_many",
        "uninitialised accumulator",
        "range_constexpr(4)",
        "range_constexpr(5)",
        UNSET,
        "shared",
    ),
    Change("scale", "tail", "off-by-one tail", "i < 100", "i <= 100", BOUNDS, "x"),
    Change("scale", "no_guard", "out of bounds above", "if i < 100:", "if i >= 0:", BOUNDS, "x"),
    Change("scale", "below", "out of bounds below", "x[i] * 2", "x[i - 1] * 2", BOUNDS, "x"),
    Change("scale", "input", "write to an input", "y[i] =", "x[i] =", Kind.INPUT_WRITTEN, "x"),
    Change("scale", "unset_output", "output read before it is written", "x[i] * 2", "x[i] * 2 + y[i]", UNSET, "y"),
    Change("rows", "short_stride", "wrong stride", "stride=(40, 1)", "stride=(32, 1)", NUMBERS, "y"),
    Change("rows", "long_stride", "wrong stride", "stride=(40, 1)", "stride=(48, 1)", BOUNDS, "x"),
    Change("rows", "overlap", "overlapping outputs of CTAs", "stride=(32, 1)", "stride=(16, 1)", RACE, "y"),
    Change("transpose", "no_barrier", "missing barrier", SYNC, "pass", RACE, "shared"),
    Change("transpose", "layout", "wrong bank layout", "stride=(1, 33)", "stride=(1, 32)", UNSET, "shared"),
    Change("ring", "group_count", "missing cp.async wait", "wait_group(1)", "wait_group(2)", ASYNC, "shared"),
    Change("ring", "no_wait", "missing cp.async wait", "cute.arch.cp_async_wait_group(1)", "pass", ASYNC, "shared"),
    Change("ring", "refill", "stale double buffer", SYNC + "  # before", "pass  # before", RACE, "shared", (ASYNC,)),
    Change(
        "ring", "next_stage", "stale double buffer", "ring[row % STAGES", "ring[(row + 1) % STAGES", ASYNC, "shared"
    ),
    Change(
        "bulk",
        "no_flip",
        "missing mbarrier phase flip",
        "mbarrier_wait(bar, row % 2)",
        "mbarrier_wait(bar, 0)",
        ASYNC,
        "shared",
        (Kind.MBARRIER,),
        DEADLOCK,
    ),
    Change("bulk", "arrivals", "wrong mbarrier count", "mbarrier_init(bar, 1)", "mbarrier_init(bar, 2)", DEADLOCK),
    Change("bulk", "bytes", "wrong mbarrier count", "expect_tx(bar, 256)", "expect_tx(bar, 272)", DEADLOCK),
    Change(
        "bulk",
        "no_wait",
        "missing mbarrier wait",
        "cute.arch.mbarrier_wait(bar, row % 2)",
        "pass",
        ASYNC,
        "shared",
        (Kind.MBARRIER,),
    ),
    Change("bulk", "refill", "stale buffer", SYNC + "  # before", "pass  # before", RACE, "shared"),
    Change(
        "global_sum",
        "plain",
        "racy reduction without atomics (global)",
        'cute.arch.atomic_add(y.iterator.llvm_ptr, v, sem="relaxed", scope="gpu")',
        "y[0] = y[0] + v",
        RACE,
        "y",
    ),
    Change("global_sum", "scope", "wrong atomics scope", 'scope="gpu"', 'scope="cta"', RACE, "y"),
    Change("global_sum", "not_cleared", "uninitialised accumulator", "y[0] = 0", "pass", UNSET, "y"),
    Change(
        "histogram",
        "plain",
        "racy reduction without atomics (shared)",
        'cute.arch.atomic_add((bins.iterator + value).llvm_ptr, Int32(1), sem="relaxed", scope="cta")',
        "bins[value] = bins[value] + 1",
        RACE,
        "shared",
    ),
    Change("histogram", "not_cleared", "uninitialised accumulator", "bins[t] = 0", "pass", UNSET, "shared"),
    Change("histogram", "clear_late", "missing barrier", SYNC + "  # the bins are clear", "pass", RACE, "shared"),
    Change("histogram", "read_early", "missing barrier", SYNC + "  # the bins are full", "pass", RACE, "shared"),
)
