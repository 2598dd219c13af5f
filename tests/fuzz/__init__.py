"""Fuzzing of the parsers that read foreign bytes: `python -m fuzz.run` for a budget, tests/test_fuzz_*.py in short."""
