"""The trainable nano model learns, survives being stored, goes on where it stopped, and refuses odd orders."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kgen.contract.quant import mxfp4_pack, mxfp4_unpack
from kgen.model.nano import export, safetensors_file
from kgen.model.nano.batches import Batch, feed, to_device
from kgen.model.nano.learning import accuracy, optimiser, rate_at, train_step
from kgen.model.nano.packing import Diet, Exam, pack
from kgen.model.nano.shape import NANO, TINY
from kgen.model.nano.train import Run, parse, train
from kgen.model.nano.trainable import NanoModel, fake_mxfp4

F64 = torch.float64


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def shaken(compute: torch.dtype = F64) -> NanoModel:
    """TINY in float64 with every weight away from its initial value."""
    model = NanoModel(TINY, compute=compute, seed=3).to(F64)
    gen = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor += 0.3 * torch.randn(tensor.shape, generator=gen, dtype=F64)
    return model


# ---- quantised experts and the stored form ---------------------------------------------------------------------------


def test_quantised_training_sees_the_stored_values_and_passes_gradients() -> None:
    weights = [torch.randn(2, 6, 64, requires_grad=True), torch.randn(3, 32, requires_grad=True)]
    for weight, near in zip(weights, fake_mxfp4(weights), strict=True):
        assert torch.equal(near, mxfp4_unpack(*mxfp4_pack(weight.detach()), torch.float32))
        assert not torch.equal(near, weight)
        (near * 3).sum().backward()
        assert torch.equal(weight.grad, torch.full_like(weight, 3.0))  # type: ignore[arg-type]


def test_the_model_uses_quantised_experts_only_when_told() -> None:
    model = shaken()
    ids = torch.arange(1, 40).view(1, -1)
    stored = NanoModel(TINY, compute=F64, seed=0).to(F64)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    for key in state:
        if key.endswith((".w13", ".w2")):
            state[key] = mxfp4_unpack(*mxfp4_pack(state[key]), F64)
    stored.load_state_dict(state)
    with torch.no_grad():
        exact, told, plain = model(ids, quantise=False)[0], model(ids, quantise=True)[0], stored(ids, quantise=False)[0]
    assert torch.equal(told, plain) and not torch.allclose(told, exact)


def test_storing_and_reading_keeps_every_bit(tmp_path: Path) -> None:
    model, path = shaken(torch.float32), tmp_path / "w.safetensors"
    export.write(path, model, {"seed": "3"})
    tensors, shape, notes = export.read(path)
    assert shape == TINY and notes["seed"] == "3"
    again = NanoModel(TINY, compute=torch.float32, seed=9)
    export.load_into(again, tensors)
    stored = export.stored(again)
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[key], tensors[key]) for key in stored)
    assert torch.equal(tensors["layers.1.moe.w13"], mxfp4_pack(model.state_dict()["layers.1.moe.w13"])[0])
    assert torch.equal(tensors["layers.0.kda.w_in"], model.state_dict()["layers.0.kda.w_in"].bfloat16())


def test_the_public_reader_agrees(tmp_path: Path) -> None:
    public = pytest.importorskip("safetensors")
    path = tmp_path / "w.safetensors"
    tensors = {"a": torch.randn(3, 5).bfloat16(), "b.c": torch.arange(7, dtype=torch.uint8), "s": torch.tensor(2.5)}
    safetensors_file.write(path, tensors, {"note": "ü"})
    with public.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"note": "ü"} and set(file.keys()) == set(tensors)
        assert all(torch.equal(file.get_tensor(key), tensors[key]) for key in tensors)


def test_the_file_format_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  '
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x00\x00\x80\x3f\x00\x00\x00\xc0")
    tensors, notes = safetensors_file.read(path)
    assert tensors["x"].tolist() == [1.0, -2.0] and notes == {}


@pytest.mark.parametrize("keep", [0, 5, 200, 6000, -1, -2])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "w.safetensors"
    export.write(path, shaken(torch.float32), {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        export.read(path)


def test_weights_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors_file.write(path, {"x": torch.ones(2)}, {})
    with pytest.raises(ValueError, match="holds no kgen-nano-1 weights"):
        export.read(path)
    safetensors_file.write(path, {}, {"format": export.FORMAT, **replace(TINY, hidden=64).text()})
    with pytest.raises(ValueError, match="other sizes of tiny"):
        export.read(path)
    stored = export.stored(shaken(torch.float32))
    with pytest.raises(ValueError, match=r"1 keys differ, the first is final\.w_out"):
        export.load_into(shaken(torch.float32), {k: v for k, v in stored.items() if k != "final.w_out"})
    with pytest.raises(ValueError, match=r"embed must be torch\.bfloat16 \[512, 32\]"):
        export.load_into(shaken(torch.float32), {**stored, "embed": stored["embed"].float()})


KDA = {
    "w_in": [1168, 256], "conv_w": [768, 4], "f_b": [256, 128], "a_log": [2], "dt_bias": [256], "w_onorm": [128],
    "w_o": [256, 256],
}  # fmt: skip
MLA = {
    "w_in": [960, 256], "w_qn": [128], "w_qb": [384, 128], "w_uk": [2, 128, 512], "w_kvn": [512],
    "w_uv": [2, 512, 128], "w_o": [256, 256],
}  # fmt: skip
MOE = {
    "w_router": [16, 256], "bias": [16], "w_latent": [128, 256], "w13": [16, 128, 64], "s13": [16, 128, 4],
    "w2": [16, 128, 32], "s2": [16, 128, 2], "gamma": [128], "w_up": [256, 128], "w_shared_gate_up": [256, 256],
    "w_shared_down": [256, 128],
}  # fmt: skip


def test_nano_is_stored_under_the_agreed_keys_and_small(tmp_path: Path) -> None:
    expected = {"embed": [512, 256], "lm_head": [512, 256]}
    for i in range(8):
        parts = [("mla", MLA) if i in (3, 7) else ("kda", KDA)]
        parts += [("moe", MOE)] if i else [("dense", {"w_gate_up": [1024, 256], "w_down": [256, 512]})]
        parts += [(mix, {"w_norm": [256], "w_query": [256], "w_out": [256]}) for mix in ("pre", "post")]
        expected |= {f"layers.{i}.{part}.{leaf}": size for part, table in parts for leaf, size in table.items()}
    expected |= {f"final.{leaf}": [256] for leaf in ("w_norm", "w_query", "w_out")}
    path = tmp_path / "nano.safetensors"
    export.write(path, NanoModel(NANO, compute=torch.float32, seed=0), {})
    tensors, _, _ = export.read(path)
    assert {key: list(t.shape) for key, t in tensors.items()} == expected
    kinds = {torch.float32: ("conv_w", "a_log", "dt_bias", "bias"), torch.uint8: ("w13", "s13", "w2", "s2")}
    for key, tensor in tensors.items():
        leaf = key.rpartition(".")[2]
        assert tensor.dtype == next((d for d, leaves in kinds.items() if leaf in leaves), torch.bfloat16), key
    assert path.stat().st_size < 16_000_000


# ---- learning --------------------------------------------------------------------------------------------------------


def batches(count: int, tasks: tuple[str, ...] = ("copy", "brackets")) -> list[Batch]:
    diet = Diet(1, 512, 64, tasks)
    return [to_device(pack(diet.job(n, 0.0)), "cpu") for n in range(count)]


@pytest.mark.parametrize("progress", [0.1, 0.5])
def test_thirty_steps_lower_the_loss(progress: float) -> None:
    """With plain and with quantised experts."""
    model = NanoModel(TINY, compute=torch.float32, seed=1)
    steps = optimiser(model, 1e-2)
    losses = [float(train_step(model, steps, batch, progress, 1e-2)) for batch in batches(30)]
    assert losses[0] == pytest.approx(math.log(512), abs=1.0)
    assert sum(losses[-5:]) / 5 < losses[0] - 1.0


def test_bf16_computation_follows_float32() -> None:
    """Most rows: where two experts score alike, a rounding may choose the other one."""
    ids = batches(1)[0].ids
    exact, near = (NanoModel(TINY, compute=d, seed=1)(ids, quantise=True)[0] for d in (torch.float32, torch.bfloat16))
    assert near.dtype == torch.bfloat16
    errors = (exact - near.float()).norm(dim=-1) / exact.norm(dim=-1)
    assert 1e-3 < errors.median() < 0.03


def test_the_routing_bias_moves_towards_equal_load_and_ignores_padding() -> None:
    model = NanoModel(TINY, compute=torch.float32, seed=1)
    moe = model.moes()[0]
    moe.bias += torch.tensor([9.0, 0.0, 0.0, 0.0])  # everybody takes expert 0
    before = moe.bias.clone()
    train_step(model, optimiser(model, 1e-3), batches(1)[0], 0.0, 1e-3)
    assert moe.bias[0] < before[0] and (moe.bias[1:] > before[1:]).any()


def test_the_rate_rises_then_falls() -> None:
    rates = [rate_at(p / 100, 1.0) for p in range(101)]
    assert rates[0] < 0.01 and max(rates) == rates[2] == pytest.approx(1.0) and rates[-1] == pytest.approx(0.02)
    assert rates[2:] == sorted(rates[2:], reverse=True)


def test_accuracy_counts_whole_answers() -> None:
    """A head that always says EOS is right at one place of each answer, so at no answer."""
    model = NanoModel(TINY, compute=torch.float32, seed=1)
    exam = [to_device(pack(job), "cpu") for job in Exam("brackets", 64, 20).jobs(512, 1)]
    assert accuracy(model, exam, False) == 0.0
    ended = [replace(b, targets=torch.full_like(b.targets, 2)) for b in exam]
    with torch.no_grad():
        model.lm_head.zero_()
    first = [replace(b, targets=torch.zeros_like(b.targets)) for b in exam]
    assert accuracy(model, first, False) == 1.0 and accuracy(model, ended, False) == 0.0
    one = first[0].targets.clone()
    one[int((first[0].owners == 3).nonzero()[0])] = 7
    assert accuracy(model, [replace(first[0], targets=one)], False) == pytest.approx(1 - 1 / first[0].ids.shape[0])


def test_workers_draw_what_one_process_draws() -> None:
    def numbered() -> Callable[[], object]:
        count = iter(range(100))
        return lambda: Diet(1, 256, 64).job(next(count), 0.0)

    with feed(0, numbered()) as plain, feed(2, numbered()) as ahead:  # type: ignore[arg-type]
        assert [plain() for _ in range(5)] == [ahead() for _ in range(5)]


# ---- the command -----------------------------------------------------------------------------------------------------


def order(tmp_path: Path, *extra: str) -> Run:
    small = ["--shape", "tiny", "--device", "cpu", "--workers", "0", "--tokens", "256", "--longest", "64"]
    names = ["--out", str(tmp_path / "w.st"), "--log", str(tmp_path / "log.jsonl"), "--exam-items", "4"]
    return parse([*small, *names, *extra])


def logged(run: Run) -> list[dict[str, object]]:
    return [json.loads(line) for line in run.log.read_text(encoding="utf-8").splitlines()]


def test_a_run_writes_weights_and_a_log(tmp_path: Path) -> None:
    run = order(tmp_path, "--steps", "3")
    train(run)
    records = logged(run)
    assert [r["kind"] for r in records if r["kind"] != "train"] == ["start", "eval", "end"]
    assert records[-1]["step"] == 3 and records[0]["versions"]["torch"] == torch.__version__  # type: ignore[index]
    exams = {"recall@40", "copy@16", "copy@64", "modular@24", "modular@64", "brackets@24", "brackets@64", "json@64"}
    assert set(records[-2]["accuracy"]) == exams  # type: ignore[call-overload]
    _, shape, notes = export.read(run.out)
    assert shape == TINY and notes["step"] == "3" and notes["tokens"] == "768"


def test_the_same_order_gives_the_same_weights(tmp_path: Path) -> None:
    raw = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run = order(tmp_path / name, "--steps", "2")
        train(run)
        raw.append(run.out.read_bytes())
    assert raw[0] == raw[1]


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    run = order(tmp_path, "--minutes", "0.05", "--stop-after", "0.01", "--state", str(tmp_path / "state"))
    train(run)
    paused = logged(run)[-1]
    assert paused["kind"] == "pause" and run.out.exists()
    train(replace(run, stop_after=0.0))
    records = logged(run)
    again = [r for r in records if r["kind"] == "start"][1]
    assert again["from_step"] == paused["step"] and records[-1]["kind"] == "end"
    assert records[-1]["step"] > paused["step"] and records[-1]["seconds"] < 6  # type: ignore[operator]
    with pytest.raises(ValueError, match="belongs to another run"):
        train(replace(run, seed=2))


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--shape", "mega"], "no shape 'mega'"),
        (["--minutes", "0"], "must be positive"),
        (["--steps", "-1"], "0 or more"),
        (["--tokens", "32"], "no row of 32 tokens"),
        (["--rate", "3"], "between 0 and 1"),
        (["--stop-after", "5"], "needs --state"),
        (["--tasks", "copy,chess"], "no task 'chess'"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_odd_orders_are_refused_in_one_line(tmp_path: Path, extra: list[str], says: str) -> None:
    if "cuda" in extra and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(ValueError, match=re.escape(says)) as refusal:
        order(tmp_path, *extra)
    assert "\n" not in str(refusal.value)
