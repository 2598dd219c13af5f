"""The plugin in vLLM 0.33 itself, on a CPU: its plugin loader, registry, configuration and model classes.

Needs vLLM's Python files and what they import, installed or in the folders that KGEN_VLLM_PATH lists; its compiled
libraries are not needed. What is stood in for, and what is not shown, is in support/vllm_real.py.
"""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support import vllm_real
from support.vllm_proof import distribution
from support.vllm_sets import BINS, compiled, make_set
from support.vllm_standin import LAYERS

from kgen.ops import REGISTRY
from kgen.serve.vllm.kernels import weight_shapes
from kgen.serve.vllm.seats import OPS

pytestmark = [pytest.mark.deep]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    named = os.environ.get("KGEN_VLLM_PATH", "")
    if not named and importlib.util.find_spec("vllm") is None:
        pytest.skip("no vLLM here: KGEN_VLLM_PATH must list the folders of its files and of what they import")
    folder = tmp_path_factory.mktemp("real")
    target = make_set(folder / "set", dict.fromkeys(BINS, compiled(folder)["right"]))
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in (named, distribution(folder)) if p),
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "KGEN_CACHE": str(folder / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-P", vllm_real.__file__, str(target.path), str(folder / "model")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.rpartition("found ")[2])
    return result


def test_vllm_loads_the_plugin_and_keeps_what_it_knows_of_the_model(found: dict[str, Any]) -> None:
    assert found["status"].startswith("registered") and not found["cuda"] and found["same_interfaces"]
    assert found["state"] == ["kgen.serve.vllm.model", "vllm.models.kimi_k3.nvidia.model_state"]


def test_a_real_configuration_and_real_layers_are_refused_nothing(found: dict[str, Any]) -> None:
    assert found["config_refusals"] == found["site_refusals"] == found["plan"]["refusals"] == []


def test_the_sites_are_those_of_the_stand_in(found: dict[str, Any]) -> None:
    assert found["sites"] == LAYERS


def test_objects_of_a_set_run_in_every_layer(found: dict[str, Any]) -> None:
    assert found["plan"]["captured"] == {"8": {"moe_shared": {"promoted": 3, "stock": {}}}}
    assert found["plan"]["seats"]["moe_shared"]["tokens"] == list(BINS)


@pytest.mark.parametrize("op", OPS)
def test_a_seat_gives_what_the_stock_call_gives(found: dict[str, Any], op: str) -> None:
    assert op in found["ran"] and found["errors"][op]
    # the router's weights are bf16 by contract; norms of o, and of the latent, in float32
    allowed = {"moe_router": 5e-3, "kda_core": 5e-3, "moe_tail": 5e-3}
    assert max(found["errors"][op]) < allowed.get(op, 1e-6)


def test_the_absorbed_weights_of_mla_are_views_in_another_order_than_kernels_read(found: dict[str, Any]) -> None:
    heads, nope, value, latent = 2, 128, 128, 512  # kv_b_proj: for each head nope rows, then value rows, of latent
    shared = {"a view": True}
    assert found["absorbed"] == {
        "w_uk": {"shape": [heads, nope, latent], "stride": [(nope + value) * latent, latent, 1], **shared},
        "w_uv": {"shape": [heads, latent, value], "stride": [(nope + value) * latent, 1, latent], **shared},
    }
    wanted = {op: weight_shapes(REGISTRY.get(op), "nano") for op in ("mla_q", "mla_out_gate")}  # contiguous
    assert (*wanted["mla_q"]["w_uk"], *wanted["mla_out_gate"]["w_uv"]) == (heads, nope, latent, heads, latent, value)
