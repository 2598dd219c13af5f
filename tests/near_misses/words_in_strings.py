from near_misses.near import Near

NEAR = Near(
    looks="the same in strings that are never run",
    tail="""\


NOTES = ("eval('1')", "__import__('os').environ", "getattr(x, '__class__')", "torch.matmul")
MORE = "cute.arch.thread_idx = None"
""",
)
