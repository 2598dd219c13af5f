"""The decode model built on the ops: weights, one step, sessions with CUDA graphs, and its float64 reference."""
