"""The machine a gate ran on, as a record: most of it from torch; clocks, power limit and driver from nvidia-smi."""

import importlib.metadata
import platform
import shutil
import subprocess

import torch

from kgen.records import Environment
from kgen.serve.runtime import RuntimeMissing, find_runtime

SUFFIX = {(9, 0): "a", (10, 0): "a", (10, 1): "a", (10, 3): "a", (11, 0): "a", (12, 0): "a", (12, 1): "a"}
QUERY = "driver_version,clocks.sm,clocks.mem,power.limit"
SMI_SECONDS = 20


def device_arch() -> str:
    """E.g. sm_90a; "" without a GPU."""
    if not torch.cuda.is_available():
        return ""
    capability = torch.cuda.get_device_capability()
    return f"sm_{capability[0]}{capability[1]}{SUFFIX.get(capability, '')}"


def _smi() -> dict[str, str]:
    """Answers of nvidia-smi for the current device, {} where it is missing or refuses."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return {}
    number = str(torch.cuda.current_device())
    command = [smi, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", number]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    answers = [a.strip() for a in done.stdout.strip().split(",")]
    return dict(zip(QUERY.split(","), answers, strict=False)) if done.returncode == 0 else {}


def _number(text: str) -> int:
    try:
        return round(float(text))
    except ValueError:
        return -1


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # carried without its metadata, as a kit does


def environment() -> Environment:
    """Read now: call it right after timing, while the clocks are those of the run. Works without a GPU too."""
    try:
        flavour = find_runtime().flavour
    except RuntimeMissing:
        flavour = "none"
    gpu = torch.cuda.is_available()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device()) if gpu else None
    smi = _smi() if gpu else {}
    return Environment(
        gpu=properties.name if properties else "none",
        arch=device_arch(),
        sms=properties.multi_processor_count if properties else 0,
        l2_bytes=properties.L2_cache_size if properties else 0,
        memory_bytes=properties.total_memory if properties else 0,
        driver=smi.get("driver_version", "unknown" if gpu else "none"),
        cuda=torch.version.cuda or "none",
        torch=torch.__version__,
        python=platform.python_version(),
        tvm_ffi=_version("apache-tvm-ffi"),
        runtime_flavour=flavour,
        sm_clock_mhz=_number(smi.get("clocks.sm", "")),
        memory_clock_mhz=_number(smi.get("clocks.mem", "")),
        power_limit_w=_number(smi.get("power.limit", "")),
    )
