"""The vLLM plugin: promoted kernels in the seats of a model that vLLM serves; entry point `vllm.general_plugins: kgen`.

`register` re-registers one architecture with a subclass of vLLM's own model, lazily: nothing of vLLM's models is
imported, nothing runs on CUDA, no environment variable and no attribute of a vLLM module is written. Without
`additional_config["kgen"]` the subclass behaves as its parent. It never raises; `status` tells what it did.

Covered: vLLM 0.33 on NVIDIA GPUs; outside of it the plugin steps aside with one line. Not covered: ops on the KV
caches of latent attention, and spans of several ops: they have no seat yet.
"""

import importlib
import importlib.metadata
import logging

LOG = logging.getLogger("vllm.kgen")  # below vLLM's own logger, so that its handlers and levels apply
TESTED = "0.33"
ARCHITECTURE = "KimiLinearForCausalLM"
MODEL_MODULE = "kgen.serve.vllm.model"
# What another release of vLLM, or another plugin, can make of the calls below.
FAULTS = (ImportError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, OSError)

_status = "not loaded"


def register() -> None:
    """Called by vLLM in each of its processes, more than once in some."""
    global _status
    try:
        _status = _register()
    except FAULTS as error:
        _status = f"stepped aside: {type(error).__name__}: {' '.join(str(error).split())}"
    if _status.startswith("registered"):
        LOG.info("kgen plugin: %s", _status)
    else:
        LOG.warning("kgen plugin: %s", _status)


def status() -> str:
    """The marker of a load: `not loaded`, `registered ...` or `stepped aside: ...`."""
    return _status


def _register() -> str:
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "stepped aside: vLLM is not installed"
    if version != TESTED and not version.startswith(f"{TESTED}."):
        return f"stepped aside: vLLM {version} is outside the tested range {TESTED}.*"
    registry = importlib.import_module("vllm").ModelRegistry
    found = registry.models.get(ARCHITECTURE)
    if found is None:
        return f"stepped aside: this vLLM has no {ARCHITECTURE}"
    module = str(getattr(found, "module_name", ""))
    if module != MODEL_MODULE:
        if not module.startswith("vllm."):
            return f"stepped aside: another plugin has registered {ARCHITECTURE}"
        registry.register_model(ARCHITECTURE, f"{MODEL_MODULE}:{ARCHITECTURE}")
    return f"registered for {ARCHITECTURE}, vLLM {version}"
