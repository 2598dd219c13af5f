"""The numbers that judging goes by, written out a second time: a change of one is seen, and asks for a reason.

A number that decides whether a candidate passes belongs to the gate contract, whose version rises with it.
"""

import importlib
import inspect
from typing import Any

import pytest

GRAPH, CHAINED, COLD = "graph", "chained", "cold"
NUMBERS: dict[str, dict[str, Any]] = {
    "contract.tolerance": {"SLACK": 1.25, "TINY": 1e-300},
    "contract.selftest": {"TOKENS": 8, "SEED": 20260, "MOVED": 10.0},
    "gates.numeric": {
        "DEADLINE_SECONDS": 600.0, "STALL_SECONDS": 60.0, "REPEATS": 2, "PTX_STEPS": 3, "SEED_BITS": 48, "SHOWN": 20,
    },
    "gates.perf": {
        "DEADLINE_SECONDS": 900.0, "STALL_SECONDS": 180.0, "REPETITIONS": {GRAPH: 40, CHAINED: 20, COLD: 40},
        "SCENARIO_BINS": (1, 8, 64), "STATE_BYTES": 2_000_000_000, "SHOWN": 20,
    },
    "gates.timing": {
        "L2_TIMES": 3, "MIN_SETS": 3, "MAX_SETS": 64, "ROTATION_BYTES": 17_179_869_184, "MIN_CALLS": 24,
        "FLUSH_TIMES": 4, "SETTLE": 3, "WARM_SECONDS": 0.05, "LEAD_CYCLES": 600_000,
        "CU_LIMIT_PERSISTING_L2_CACHE_SIZE": 6,
    },
    "gates.statistics": {"RESAMPLES": 4000, "CONFIDENCE": 0.95},
    "gates.ingest": {"MAX_BYTES": 67_108_864},
    "promotion.promote": {"MAX_SET_BYTES": 24_000_000},
    "gates.audit.limits": {
        "BLOCK_THREADS": 1024, "SMEM_BYTES": 227 * 1024, "GRID": (2_147_483_647, 65535, 65535), "CLUSTER_BLOCKS": 16,
        "REGISTERS": 65536, "STACK_BYTES": 0, "REGISTER_UNIT": 256,
    },
    "gates.audit.object": {"ET_REL": 1, "MACHINES": {"x86_64": 62, "aarch64": 183}},
    "gates.audit.cubin": {
        "EM_CUDA": 190, "RESERVED_SMEM": 1024, "NEW_ABI": 8, "FATBIN": b"P\xedU\xba", "FATBIN_VERSION": 1,
        "FATBIN_HEADER": 16, "KIND_ELF": 2, "SIZED": 4, "REGISTERS": 47, "FRAME": 17, "MAX_THREADS": 5,
        "REQUIRED_THREADS": 16, "PARAMETER": 23,
    },
    "gates.audit.elf": {
        "MAX_SECTIONS": 4096, "MAX_NAME": 4096, "CLASS_64": 2, "LITTLE_ENDIAN": 1,
        "SHT_SYMTAB": 2, "SHT_RELA": 4, "SHT_NOBITS": 8, "SHT_REL": 9, "SHT_INIT": 14,
        "SHT_FINI": 15, "SHT_PREINIT": 16, "SHF_WRITE": 1, "SHF_ALLOC": 2, "SHF_EXECINSTR": 4, "SHF_TLS": 0x400,
        "SHN_UNDEF": 0, "STB_LOCAL": 0, "STT_TLS": 6, "STT_GNU_IFUNC": 10,
    },
    "gates.audit.recorder": {
        "ADDRESS_BITS": 40, "DESCRIPTOR": 128, "MAX_NAME": 4096, "COOPERATIVE": 2, "CLUSTER": 4, "PDL": 6,
        "CLUSTER_POLICY": 5, "CARVEOUT": 14,
    },
    "gates.modeleval.distance": {"BLOCK": 128, "RESAMPLES": 1000, "AT_ONCE": 4_194_304},
    "gates.modeleval.paired": {"HALVINGS": 60},
    "gates.modeleval.census": {"WIDTHS": (1, 4, 8)},
    "gates.modeleval.trial": {"SHOWN": 3},
}  # fmt: skip


@pytest.mark.parametrize("module", NUMBERS)
def test_the_numbers_of_a_module_are_these(module: str) -> None:
    found = vars(importlib.import_module(f"kgen.{module}"))
    assert {name: found[name] for name in NUMBERS[module]} == NUMBERS[module]


DEFAULTS: dict[str, dict[str, Any]] = {
    "gates.judge.judge_outputs": {"steps": 1},
    "gates.numeric.run": {"device": "cuda", "deadline": 600.0, "sanitize": True, "next_command": ""},
    "gates.numeric.run_specs": {
        "device": "cuda", "deadline": 600.0, "stall": 60.0, "sanitize": True, "next_command": "",
    },
    "gates.numeric.make_plan": {"interpreted": False},
    "gates.perf.run": {"device": "cuda", "champion": (), "deadline": 900.0, "next_command": ""},
    "gates.perf.run_specs": {"device": "cuda", "champion": (), "deadline": 900.0, "stall": 180.0, "next_command": ""},
    "gates.timing.sets_needed": {"allocated": 0},
    "gates.timing.interleave": {"flush": False},
    "gates.ingest.ingest": {"trust": False},
    "promotion.promote.promote": {"key": b"", "trust": False},
    "gates.perf_judge.name_of": {"column": ""},
    "gates.modeleval.divergence.compare": {"alpha": 0.05, "horizon": None},
    "gates.modeleval.divergence.rate_ratio": {"alpha": 0.05},
    "gates.modeleval.distance.median_ratio": {"alpha": 0.05, "seed": 0},
    "gates.modeleval.paired.lower_bound": {"alpha": 0.05},
    "gates.modeleval.paired.difference": {"alpha": 0.05},
    "contract.rules.Judged": {"allowed_true": 0.0},
    "gates.audit.recorder.Argument": {"value": 0, "pitch": 0},
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_not_said_is_the_careful_choice(name: str) -> None:
    module, function = name.rsplit(".", 1)
    parameters = inspect.signature(getattr(importlib.import_module(f"kgen.{module}"), function)).parameters
    assert {key: parameters[key].default for key in DEFAULTS[name]} == DEFAULTS[name]
