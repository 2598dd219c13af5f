"""Makers of steps: an instruction -> the closure that executes it for a group of lanes."""
