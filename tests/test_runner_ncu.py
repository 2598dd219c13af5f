"""Nsight Compute's CSV in its documented form, its options, and every reason for a skip."""

from pathlib import Path

import pytest

from kgen.gates.runner.ncu import METRICS, judged, parsed, wrap

CSV = """==PROF== Connected to process 12
==PROF== Profiling "k1": 0%....100% - 4 passes
"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size",\
"dram__bytes_read.sum","other__metric.sum","gpu__time_duration.sum"
"","","","","","","byte","","ns"
"0","12","python","k1","(128, 1, 1)","(32, 1, 1)","1,048,576","7","9,216"
"1","12","python","k2, with a comma","(128, 1, 1)","(32, 1, 1)","n/a","7","1024.5"
"""


def test_values_come_by_kernel_and_metric_without_the_line_of_units() -> None:
    assert parsed(CSV) == {
        "k1": {"dram__bytes_read.sum": 1048576.0, "gpu__time_duration.sum": 9216.0},
        "k2, with a comma": {"gpu__time_duration.sum": 1024.5},
    }


@pytest.mark.parametrize(
    ("out", "errors", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "", "may not read"),
        ("", "==ERROR== no kernels were profiled", "no kernels were profiled"),
        ("", "", "no words"),
        (CSV.splitlines()[2], "", "no metrics"),
    ],
)
def test_what_prevents_it_is_a_reason_to_skip(out: str, errors: str, words: str) -> None:
    profile = judged(out, errors, "done")
    assert words in profile.skipped and not profile.kernels


def test_the_command_asks_for_every_metric_once_of_the_calls_that_are_marked(tmp_path: Path) -> None:
    made = wrap("ncu", tmp_path / "log")
    assert made[0] == "ncu" and made[made.index("--metrics") + 1].split(",") == list(METRICS) and len(METRICS) == 25
    assert made[made.index("--profile-from-start") + 1] == "off"
    assert made[made.index("--log-file") + 1] == str(tmp_path / "log")
