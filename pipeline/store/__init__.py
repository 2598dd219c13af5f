"""Durable files: run folders, the result cache, kernel sets for reading, locks and atomic writes."""

from kgen.store.cache import Blobs, Results
from kgen.store.candidates import CandidateFolder
from kgen.store.durable import DURABLE, Durable, locked, sweep
from kgen.store.errors import IntegrityError, LockBusy, StoreError, storing
from kgen.store.kernelset import KernelSet, parse_problem
from kgen.store.paths import SetPath, cache_path, runs_path, serving_sets, set_path
from kgen.store.runs import Run, RunInfo, Runs

__all__ = [
    "DURABLE",
    "Blobs",
    "CandidateFolder",
    "Durable",
    "IntegrityError",
    "KernelSet",
    "LockBusy",
    "Results",
    "Run",
    "RunInfo",
    "Runs",
    "SetPath",
    "StoreError",
    "cache_path",
    "locked",
    "parse_problem",
    "runs_path",
    "serving_sets",
    "set_path",
    "storing",
    "sweep",
]
