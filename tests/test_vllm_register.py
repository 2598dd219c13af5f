"""Registration: lazy, repeatable, silent about what it does not touch, and it never raises."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.vllm_standin import ARCHITECTURE, KimiLinearForCausalLM, Lazy, install

import kgen.serve.vllm
from kgen.serve.vllm import MODEL_MODULE, host, register, status
from kgen.serve.vllm.model import subclass


def registered(vllm: ModuleType) -> Lazy:
    found: Lazy = vllm.ModelRegistry.models[ARCHITECTURE]
    return found


def test_one_architecture_is_registered_by_name_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vllm.kgen")
    vllm = install(monkeypatch, tmp_path)
    register()
    first = registered(vllm)
    assert (first.module_name, first.class_name) == (MODEL_MODULE, ARCHITECTURE)
    register()
    assert registered(vllm) is first and set(vllm.ModelRegistry.models) == {ARCHITECTURE}
    assert status() == f"registered for {ARCHITECTURE}, vLLM 0.33.0"
    assert [r.getMessage() for r in caplog.records] == [f"kgen plugin: {status()}"] * 2
    assert issubclass(first.load(), KimiLinearForCausalLM)


@pytest.mark.parametrize("version", ["0.33.0", "0.33.1", "0.33.0+cu130", "0.33"])
def test_releases_of_the_tested_range_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    install(monkeypatch, tmp_path, version)
    register()
    assert status().startswith("registered")


def another_plugin(vllm: ModuleType) -> None:
    vllm.ModelRegistry.register_model(ARCHITECTURE, "somebody.else:Model")


def unknown(vllm: ModuleType) -> None:
    vllm.ModelRegistry.models.clear()


def no_registry(vllm: ModuleType) -> None:
    del vllm.ModelRegistry


def raising(vllm: ModuleType) -> None:
    def register_model(*args: Any) -> None:
        raise TypeError("register_model() takes\n3 arguments")

    vllm.ModelRegistry.register_model = register_model


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (another_plugin, f"another plugin has registered {ARCHITECTURE}"),
        (unknown, f"this vLLM has no {ARCHITECTURE}"),
        (no_registry, "AttributeError"),
        (raising, "TypeError: register_model() takes 3 arguments"),
    ],
)
def test_a_strange_vllm_is_left_alone_with_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, told: str
) -> None:
    vllm = install(monkeypatch, tmp_path)
    change(vllm)
    before = dict(vllm.ModelRegistry.models) if hasattr(vllm, "ModelRegistry") else {}
    register()
    (record,) = caplog.records
    assert told in record.getMessage() and "\n" not in record.getMessage() and record.levelno == logging.WARNING
    assert status().startswith("stepped aside: ")
    assert not before or vllm.ModelRegistry.models == before


@pytest.mark.parametrize("version", ["0.32.1", "0.34.0", "0.330.0", "1.0"])
def test_another_release_is_left_alone_with_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    vllm = install(monkeypatch, tmp_path, version)
    register()
    assert registered(vllm).module_name == "vllm.models.standin"
    (record,) = caplog.records
    assert record.getMessage() == f"kgen plugin: stepped aside: vLLM {version} is outside the tested range 0.33.*"


def test_a_model_without_a_state_to_hook_into_is_served_as_it_is() -> None:
    class Elsewhere:
        pass

    assert subclass(Elsewhere) is Elsewhere


def test_only_the_architecture_is_found_in_the_module_of_the_model() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        kgen.serve.vllm.model.Other  # noqa: B018


def test_importing_and_registering_touch_no_gpu_and_no_environment() -> None:
    code = (
        "import os, sys; before = dict(os.environ)\n"
        "import torch, kgen.serve.vllm, kgen.serve.vllm.model, kgen.serve.vllm.plan\n"
        "kgen.serve.vllm.register()\n"
        "assert not torch.cuda.is_initialized() and dict(os.environ) == before\n"
        "unwanted = {'vllm', 'cutlass', 'tvm_ffi', 'openai', 'langgraph'}\n"
        "assert not unwanted & {m.split('.')[0] for m in sys.modules}\n"
        "print(kgen.serve.vllm.status())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, "A": "b"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("stepped aside", "registered"))


CAPTURES = [
    # is the stream captured, is there a forward context, its mode -> a decode graph
    (True, True, "NONE", True),  # how vLLM captures its FULL graphs
    (True, True, "FULL", True),
    (True, True, "PIECEWISE", False),
    (True, False, "NONE", False),
    (False, True, "FULL", False),  # the run before a capture, and every eager step
]


@pytest.mark.parametrize(("capturing", "context", "mode", "decode"), CAPTURES)
def test_a_decode_graph_is_a_capture_that_is_not_piecewise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capturing: bool, context: bool, mode: str, decode: bool
) -> None:
    install(monkeypatch, tmp_path)
    found = SimpleNamespace(cudagraph_runtime_mode=SimpleNamespace(name=mode))
    contexts = sys.modules["vllm.forward_context"]
    monkeypatch.setattr(contexts, "is_forward_context_available", lambda: context)
    monkeypatch.setattr(contexts, "get_forward_context", lambda: found, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert host.in_decode_graph() is decode


def test_a_single_rank_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    found = host.serving()
    assert found.agree is host.alone and (found.rank, found.ranks, found.version) == (0, 1, "0.33.0")
    assert found.agree([True, False]) == [True, False]


def test_ranks_are_asked_over_the_cpu_group_of_tensor_parallelism(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        group = SimpleNamespace(world_size=2, rank_in_group=0, cpu_group=torch.distributed.group.WORLD)
        monkeypatch.setattr(sys.modules["vllm.distributed"], "get_tp_group", lambda: group)
        assert host.serving().agree([True, False, True]) == [True, False, True]
    finally:
        torch.distributed.destroy_process_group()
