"""The small trained model of the full-model gate: its vocabulary, tasks and marks, and all that trains it on one GPU.

Not here: how the trained weights are decoded (`kgen.model`) and what a gate concludes from the marks.
"""
