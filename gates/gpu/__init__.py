"""One GPU among several kgen processes: who has it, whether it is well, and what happens to one that is not.

    with lease.leased("cuda", "perf-sweep of 1234", seconds) as held:     waits; uses in one process share it
        held.device, held.environment           the device, and what a child is told of it
    health.examine(held, what, why)             a fresh process computes; two failures: quarantine, and DeviceLost
    quarantine.listed(), quarantine.release(uuid)                         what `kgen gpu` shows, and its way back

`gates.runner.host` does all of that for every job on a GPU; the gates hold a lease round their judging as well.
"""
