"""Diagnosis as data: what gates found, as ordered findings with hints; see docs/diagnosis.md."""
