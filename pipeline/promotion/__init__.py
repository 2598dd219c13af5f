"""Promote, roll back, verify: the only writers of a kernel set."""
