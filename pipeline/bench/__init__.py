"""A benchmark of the loop itself: what a proposer gets from a fixed set of problems. See docs/bench.md."""
