"""The committed weights are those of the committed training, fit the decode model and answer what the gate asks."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from kgen.gates.modeleval.gate import trained_weights
from kgen.model import nano
from kgen.model.decoder.config import config
from kgen.model.decoder.weights import load
from kgen.model.nano import export
from kgen.model.nano.batches import to_device
from kgen.model.nano.learning import accuracy
from kgen.model.nano.packing import Exam, pack
from kgen.model.nano.shape import SHAPES
from kgen.model.nano.tasks import TASKS
from kgen.model.nano.trainable import NanoModel
from kgen.ops import REGISTRY

LOG = Path(nano.__file__).parent / "training.jsonl"
NEEDED = 0.95
# Where training measured next to the length that the gate asks; the long recall is compared with stock, not required.
MEASURED = {"recall": (512, 2048), "copy": (64, 256), "modular": (64, 192), "brackets": (24, 64), "json": (64, 192)}


def lines() -> list[dict[str, object]]:
    return [json.loads(line) for line in LOG.read_text().splitlines()]


def test_the_log_ends_with_these_very_weights() -> None:
    last = lines()[-1]
    assert last["kind"] == "end"
    assert last["sha256"] == hashlib.sha256(trained_weights().read_bytes()).hexdigest()


def test_the_file_is_small_and_its_training_took_at_most_twenty_minutes() -> None:
    assert trained_weights().stat().st_size <= 16e6
    assert float(str(lines()[-1]["seconds"])) <= 1200


@pytest.mark.parametrize("task", TASKS)
def test_training_measured_what_the_gate_needs_at_the_length_that_it_asks(task: str) -> None:
    found = next(line["accuracy"] for line in reversed(lines()) if line["kind"] == "eval")
    assert isinstance(found, dict)
    shorter, longer = MEASURED[task]
    assert shorter <= TASKS[task].usual <= longer
    assert min(found[f"{task}@{shorter}"], found[f"{task}@{longer}"]) >= NEEDED


def test_the_decode_model_reads_them() -> None:
    weights = load(trained_weights(), config("nano"), REGISTRY, "cpu")
    assert weights["embed"].shape == (512, 256)


@pytest.mark.parametrize("task", ["copy", "modular", "brackets", "json"])
def test_stored_weights_answer_short_items_that_training_never_saw(task: str) -> None:
    tensors, shape, _ = export.read(trained_weights())
    model = NanoModel(SHAPES[shape.name], compute=torch.float32, seed=1)
    export.load_into(model, tensors)
    batches = [to_device(pack(job), "cpu") for job in Exam(task, 64, 32).jobs(2048, 5)]
    assert accuracy(model, batches, quantise=False) >= 0.9


def test_the_documented_accuracy_is_the_logs() -> None:
    found = next(line["accuracy"] for line in reversed(lines()) if line["kind"] == "eval")
    assert isinstance(found, dict)
    text = (Path(__file__).parent.parent / "docs" / "model.md").read_text()
    for task in TASKS:
        lengths = [(name.split("@")[1], share) for name, share in found.items() if name.startswith(f"{task}@")]
        row = ", ".join(f"{100 * share:.1f} % at {length}" for length, share in lengths)
        assert f"| `{task}` | {row} |" in text
