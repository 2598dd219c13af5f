"""A served model from registration to captured graphs: what runs promoted, what is refused, and what all ranks do."""

import functools
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import vllm_standin
from support.vllm_engine import Engine
from support.vllm_sets import BINS, OP, compiled, make_set, prepared, settings
from support.vllm_standin import ARCHITECTURE, KimiLinearForCausalLM, ModelState, configuration

from kgen.contract import Values, relative_l2
from kgen.serve import Served
from kgen.serve.vllm.guards import Refused
from kgen.store import SetPath

SIZES = (1, 2, 8, 12, 65)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return compiled(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, objects: dict[str, bytes]) -> Path:
    return make_set(tmp_path_factory.mktemp("whole") / "set", dict.fromkeys(BINS, objects["right"])).path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linked libraries by hash, for all tests: what is linked is not what is tested here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def target(tmp_path: Path, whole: Path) -> SetPath:
    return SetPath(Path(shutil.copytree(whole, tmp_path / "set")))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> Engine:
    caplog.set_level(logging.INFO, "vllm.kgen")
    made = prepared(monkeypatch, tmp_path, cache)
    caplog.clear()
    return made


@functools.cache
def stock() -> dict[int, torch.Tensor]:
    """What the same model computes as vLLM itself builds it, by tokens."""
    made = Engine()
    made.model = KimiLinearForCausalLM(vllm_config=None)
    return {tokens: made.run(tokens) for tokens in SIZES}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What kgen said, its loader included."""
    found = [r.getMessage() for r in caplog.records if r.name.startswith(("kgen", "vllm"))]
    assert not [line for line in found if "\n" in line]
    return found


def attributes(modules: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: dict(vars(m)) for name, m in modules.items() if name == "vllm" or name.startswith("vllm.")}


def is_stock(engine: Engine) -> bool:
    return all(torch.equal(out, stock()[t]) for t, out in engine.graphs.items())


# --- isolation


def test_without_its_key_the_model_is_the_parents_in_all_but_its_class(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    before = attributes(sys.modules)
    engine.load(configuration(decode_backend="auto")).serve(SIZES)
    assert is_stock(engine) and type(engine.state) is ModelState and isinstance(engine.model, KimiLinearForCausalLM)
    own = KimiLinearForCausalLM(vllm_config=None)
    named = dict(own.named_modules())
    for name, module in list(engine.model.named_modules())[1:]:
        assert vars(module).keys() == vars(named[name]).keys() and type(module) is type(named[name])
    assert lines(caplog) == [] and attributes(sys.modules) == before


def test_with_its_key_no_attribute_of_a_module_of_vllm_is_written(engine: Engine, target: SetPath) -> None:
    before = attributes(sys.modules)
    classes = {c: dict(vars(c)) for c in vars(vllm_standin).values() if isinstance(c, type)}
    engine.load(configuration(kgen=settings(target))).serve(SIZES)
    assert attributes(sys.modules) == before and {c: dict(vars(c)) for c in classes} == classes


def test_the_class_has_its_parents_name_and_can_be_found_again_by_it(engine: Engine) -> None:
    engine.load(configuration())
    cls = type(engine.model)
    assert cls.__name__ == KimiLinearForCausalLM.__name__ == ARCHITECTURE
    assert getattr(sys.modules[cls.__module__], cls.__qualname__) is cls


# --- promoted kernels


def test_every_captured_size_with_a_kernel_runs_it_in_every_layer_and_the_rest_is_stock(
    engine: Engine, target: SetPath, caplog: pytest.LogCaptureFixture
) -> None:
    engine.load(configuration(kgen=settings(target))).serve(SIZES)
    record = json.loads((target.path.parent / "record.json").read_text())
    three = {"promoted": 3, "stock": {}}
    assert record["captured"] == {
        "1": {OP: three},
        "2": {OP: {"promoted": 0, "stock": {"no kernel for 2 tokens": 3}}},
        "8": {OP: three},
        "12": {OP: three},
        "65": {OP: {"promoted": 0, "stock": {"more than 64 tokens": 3}}},
    }
    assert record["seats"][OP] | {"launches": 0} == {
        "layers": [1, 2, 3],
        "dims": "nano",
        "tokens": list(BINS),
        "launches": 0,
    }
    assert record["refusals"] == [] and record["schema"] == "kgen.vllm-record/1" and record["vllm"] == "0.33.0"
    assert record["outside_decode_graphs"] == {}
    for tokens, out in stock().items():
        same = torch.equal(engine.graphs[tokens], out)
        assert same if tokens in (2, 65) else relative_l2(engine.graphs[tokens], out) < 5e-3
    assert lines(caplog)[-1] == (
        f"kgen: {OP} promoted at 1, 8, 12 tokens, stock at 2 (no kernel for 2 tokens), "
        f"stock at 65 (more than 64 tokens); record in {target.path.parent / 'record.json'}"
    )


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every call of a kernel."""
    found: list[int] = []
    call = Served.__call__

    def noted(served: Served, values: Values) -> dict[str, torch.Tensor]:
        found.append(served.problem.tokens)
        return call(served, values)

    monkeypatch.setattr(Served, "__call__", noted)
    return found


def calls(engine: Engine, called: list[int], for_capture: bool) -> int:
    """How often one step of 8 tokens calls a kernel."""
    called.clear()
    engine.step(8, for_capture=for_capture)
    return len(called)


def test_the_run_before_a_capture_calls_the_kernels_of_the_capture_and_no_other_step_does(
    engine: Engine, target: SetPath, called: list[int]
) -> None:
    """Stock code behind a seat tunes itself for the strides that it meets first, and may not do so in a capture."""
    engine.load(configuration(kgen=settings(target)))
    engine.state.initialize_kv_cache(None, None)
    assert [calls(engine, called, for_capture=c) for c in (True, False, True)] == [3, 0, 3]
    assert engine.model.kgen_plan.record.counts() == {} and engine.model.kgen_plan.record.outside == {OP: 3}
    engine.serve(SIZES)
    assert all(torch.equal(engine.rehearsed[t], engine.graphs[t]) for t in SIZES)
    assert calls(engine, called, for_capture=False) == 0
    engine.prepare(for_capture=True)
    engine.state.capture_inner_cudagraphs(None, None, None, None)  # the last of the captures
    engine.run(8)
    assert engine.model.kgen_plan.record.outside == {OP: 9}


def test_the_record_goes_to_the_users_data_folder_unless_a_file_is_named(
    engine: Engine, target: SetPath, tmp_path: Path
) -> None:
    engine.load(configuration(kgen={"set": str(target.path)})).serve((1,))
    (found,) = (tmp_path / "data" / "kgen" / "vllm").iterdir()
    assert json.loads(found.read_text())["captured"]["1"][OP]["promoted"] == 3


def test_a_record_that_cannot_be_written_costs_one_line_and_nothing_else(
    engine: Engine, target: SetPath, caplog: pytest.LogCaptureFixture
) -> None:
    engine.load(configuration(kgen=settings(target, record="/proc/nowhere/record.json"))).serve((1,))
    assert "promoted at 1 tokens; no record: " in lines(caplog)[-1]


def test_only_the_ops_that_are_asked_for_are_seated(engine: Engine, target: SetPath) -> None:
    engine.load(configuration(kgen=settings(target, ops=["dense_mlp"]))).serve(SIZES)
    assert is_stock(engine)
    (refusal,) = engine.model.kgen_plan.refusals
    assert str(refusal) == "dense_mlp: the set holds no kernel for it (sm_90) (configuration)"


# --- refusals


def corrupted(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    (path,) = (target.path / "objects").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    return target


def missing(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    (path,) = (target.path / "objects").iterdir()
    path.unlink()
    return target


def damaged(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    (target.path / "manifest.json").write_bytes(b"{}")
    return target


def other_arch(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    return make_set(target.path.parent / "other", {1: objects["right"]}, arch="sm_103a")


def wrong_numbers(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    return make_set(target.path.parent / "other", dict.fromkeys(BINS, objects["wrong"]))


def no_object(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    return make_set(target.path.parent / "other", dict.fromkeys(BINS, b"no object at all"))


def other_contract(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    return make_set(target.path.parent / "other", {1: objects["right"]}, contract="0" * 64)


def nothing(target: SetPath, objects: dict[str, bytes]) -> SetPath:
    return SetPath(target.path.parent / "nowhere")


SETS: dict[str, tuple[Callable[[SetPath, dict[str, bytes]], SetPath], str]] = {
    "a corrupted object": (corrupted, "damaged"),
    "a missing object": (missing, "missing"),
    "a damaged manifest": (damaged, "manifest.json"),
    "another arch": (other_arch, "holds no kernel with a seat (sm_90)"),
    "other numbers": (wrong_numbers, "away from the stock op's"),
    "what is no object": (no_object, "could not link"),
    "another contract": (other_contract, "another contract"),
    "no set": (nothing, "holds no kernel with a seat (sm_90)"),
}


@pytest.mark.parametrize("what", SETS)
def test_a_doubt_about_a_set_gives_the_stock_model_and_one_line(
    engine: Engine, target: SetPath, objects: dict[str, bytes], caplog: pytest.LogCaptureFixture, what: str
) -> None:
    change, told = SETS[what]
    engine.load(configuration(kgen=settings(change(target, objects)))).serve((1, 12))
    assert is_stock(engine) and engine.model.kgen_plan.kernels == {}
    said, last = lines(caplog)[0], lines(caplog)[1:]
    assert said.startswith("kgen: stock op for ") and told in said
    assert all(line.startswith("kgen: no decode graph with a seat was captured") for line in last)


@pytest.mark.parametrize("what", SETS)
def test_under_refuse_the_same_doubt_stops_the_start(
    engine: Engine, target: SetPath, objects: dict[str, bytes], what: str
) -> None:
    change, told = SETS[what]
    with pytest.raises(Refused, match="kgen refuses: ") as caught:
        engine.load(configuration(kgen=settings(change(target, objects), fallback="refuse")))
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_one_kernel_that_fails_leaves_the_other_sizes_promoted(
    engine: Engine, target: SetPath, objects: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    mixed = make_set(target.path.parent / "mixed", {1: objects["right"], 8: objects["wrong"], 16: objects["right"]})
    engine.load(configuration(kgen=settings(mixed))).serve((1, 8, 12))
    counts = engine.model.kgen_plan.record.counts()
    assert {t: c[OP]["promoted"] for t, c in counts.items()} == {"1": 3, "8": 0, "12": 3}
    (said,) = {line for line in lines(caplog) if "stock op" in line}
    assert said.startswith(f"kgen: stock op for {OP}: 8 tokens: y is ") and "away from the stock op's" in said


def test_a_guard_that_fails_in_one_layer_gives_the_stock_op_in_all_of_them(
    engine: Engine, target: SetPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sharded(model: Any) -> None:
        model.layers[2].block_sparse_moe.shared_experts.shard_sequence_parallel = True

    monkeypatch.setattr(vllm_standin.KimiLinearModel, "prepared", sharded)
    engine.load(configuration(kgen=settings(target))).serve((1, 12))
    assert is_stock(engine)
    assert lines(caplog)[0] == (
        f"kgen: stock op for {OP}: layer 2: needs no sharding of its MLP over a sequence (loaded weights)"
    )


def test_layers_of_different_sizes_are_refused_together(
    engine: Engine, target: SetPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixed(model: Any) -> None:
        shared = model.layers[3].block_sparse_moe.shared_experts
        for linear, shape in ((shared.gate_up_proj, (768, 7168)), (shared.down_proj, (7168, 384))):
            linear.weight = torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16), requires_grad=False)

    monkeypatch.setattr(vllm_standin.KimiLinearModel, "prepared", mixed)
    engine.load(configuration(kgen=settings(target)))
    assert [str(r) for r in engine.model.kgen_plan.refusals] == [f"{OP}: its layers differ in size (loaded weights)"]


def test_all_refusals_are_in_one_message_in_the_order_of_the_stages(
    engine: Engine, target: SetPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(kgen=settings(target, ops=[OP, "dense_mlp"], fallback="refuse"))
    config.parallel_config.pipeline_parallel_size = 2
    config.lora_config = object()
    with pytest.raises(Refused) as caught:
        engine.load(config)
    assert str(caught.value) == (
        "kgen refuses: every op: needs pipeline parallel size 1 (configuration); "
        "every op: needs no LoRA (configuration); dense_mlp: the set holds no kernel for it (sm_90) (configuration)"
    )


def test_the_model_is_not_built_when_the_configuration_is_refused(
    engine: Engine, target: SetPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    monkeypatch.setattr(vllm_standin.KimiLinearModel, "prepared", lambda model: built.append(1))
    config = configuration(kgen=settings(target, fallback="refuse"))
    config.use_v2_model_runner = False
    with pytest.raises(Refused, match="needs Model Runner V2"):
        engine.load(config)
    assert built == []


@pytest.mark.parametrize("fallback", ["op", "refuse"])
def test_the_kill_switch_gives_the_stock_model_whatever_the_fallback(
    engine: Engine, target: SetPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fallback: str
) -> None:
    monkeypatch.setenv("KGEN_DISABLE", "1")
    engine.load(configuration(kgen=settings(target, fallback=fallback))).serve((1, 12))
    assert is_stock(engine)
    assert lines(caplog)[0] == "kgen: stock op for every op: KGEN_DISABLE is set (configuration)"


def test_weights_that_change_before_a_cache_is_bound_give_up_the_seats(
    engine: Engine, target: SetPath, caplog: pytest.LogCaptureFixture
) -> None:
    engine.load(configuration(kgen=settings(target)))
    shared = engine.model.model.layers[3].block_sparse_moe.shared_experts
    shared.down_proj.weight = torch.nn.Parameter(shared.down_proj.weight[:, :64].clone(), requires_grad=False)
    engine.state.initialize_kv_cache(None, None)
    assert "forward" not in vars(shared) and engine.model.kgen_plan.kernels == {}
    assert lines(caplog) == [
        f"kgen: stock op for {OP}: layer 3: its weights are not those that were checked (KV caches)"
    ]
