from near_misses.near import Near

NEAR = Near(
    looks="eval, exec, os, sockets and torch, in comments",
    head="""\
# eval("1"); exec("2"); import os; os.system("true"); __import__("torch"); open("note"); globals()
# time.time() was 3.1 us before, cuStreamCreate and cuMemAlloc are not called, cute.compile is the builder's
""",
)
