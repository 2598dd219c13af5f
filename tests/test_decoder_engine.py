"""The decode model behind the engine protocol: generation features on real model states, and promoted kernels in seats.

In float64, verify logits equal decode logits to rounding, so that speculation has to give plain decoding's tokens.
"""

import json
import logging
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.decoders import CONTEXT, VOCAB, exact, session, tokens, weights
from support.sets import ARCH, KEY, OP, WIN, fill, make_case

from kgen.model.bind import ReferenceBinder, StockBinder
from kgen.model.decoder.config import config
from kgen.model.decoder.engine import DecoderEngine, ForGeneration
from kgen.model.decoder.swap import PROMOTED, STOCK, SwapBinder
from kgen.model.generation.grammar import Constraint, JsonSchema, Vocabulary
from kgen.model.generation.lookup import LookupDrafter
from kgen.model.generation.sampling import Sampling
from kgen.model.generation.speculative import Completion, Request, generate
from kgen.model.generation.stopping import StopRules
from kgen.model.nano.vocabulary import EOS, decode, token_bytes
from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.store import SetPath

NANO = config("nano-random")
EXACT = DecoderEngine(NANO, exact(weights()), REGISTRY, "", ReferenceBinder())
PROMPTS = [tuple(tokens(length, 1, seed=length)[:, 0].tolist()) for length in (3, 7, 5)]


def batch(q: int) -> ForGeneration:
    return ForGeneration(EXACT.prepare(4, 3, q, CONTEXT, graph=False))


def requests(sampling: Sequence[Sampling], length: int = 10) -> list[Request]:
    return [Request(p, StopRules(length), s) for p, s in zip(PROMPTS, sampling, strict=True)]


def texts(done: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.tokens for completion in done]


def nonsense(histories: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.tensor([[(len(h) * 7 + k) % VOCAB for k in range(3)] for h in histories])


DRAFTERS = {"prompt lookup": LookupDrafter(3), "nonsense": nonsense}
MODES = {
    "greedy": [Sampling()] * 3,
    "sampled": [Sampling(temperature=0.8, top_p=0.95, seed=n) for n in range(3)],
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("mode", MODES)
def test_speculation_on_the_model_gives_plain_decodings_tokens(mode: str, drafter: str) -> None:
    plain = generate(batch(1), requests(MODES[mode]))
    fast = generate(batch(4), requests(MODES[mode]), width=4, drafter=DRAFTERS[drafter])
    assert texts(fast) == texts(plain)
    assert all(c.drafted > 0 for c in fast)


def test_a_perfect_draft_is_kept_whole() -> None:
    plain = generate(batch(1), requests(MODES["greedy"]))

    def oracle(histories: Sequence[Sequence[int]]) -> torch.Tensor:
        rest = [
            [*p, *c.tokens, 0, 0, 0][len(h) : len(h) + 3] for h, p, c in zip(histories, PROMPTS, plain, strict=True)
        ]
        return torch.tensor(rest)

    fast = generate(batch(4), requests(MODES["greedy"]), width=4, drafter=oracle)
    assert texts(fast) == texts(plain)
    assert min(c.mean_accepted_length for c in fast) > 3


def test_constrained_output_of_the_model_parses() -> None:
    vocabulary = Vocabulary.of(VOCAB, lambda t: token_bytes(t) or b"", (EOS,))
    schema = {"type": "object", "properties": {"size": {"type": "integer"}, "kind": {"enum": ["oak", "pine"]}}}
    schema |= {"required": ["size", "kind"], "additionalProperties": False}
    wanted = [
        Request(p, StopRules(40, eos=(EOS,)), s, Constraint(JsonSchema(schema, compact=True), vocabulary))
        for p, s in zip(PROMPTS, [Sampling(), *MODES["sampled"][1:]], strict=True)
    ]
    finished = [c for c in generate(batch(4), wanted, width=4, drafter=nonsense) if c.stop.reason != "length"]
    assert finished, "no output came to its end"
    for completion in finished:
        value = json.loads(decode(t for t in completion.tokens if t != EOS))
        assert isinstance(value["size"], int) and value["kind"] in ("oak", "pine")


def test_stock_engines_launch_nothing_of_ours() -> None:
    engine = DecoderEngine(NANO, weights(), REGISTRY, "", StockBinder())
    engine.prepare(1, 1, 1, CONTEXT, graph=False).decode(torch.tensor([5]))
    assert engine.launches() == {}


def test_an_engine_refuses_a_batch_that_the_model_does_not_have() -> None:
    with pytest.raises(ValueError, match="9 is not a token bin"):
        EXACT.prepare(9, 9, 1, CONTEXT, graph=False)


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetPath:
    """A set whose kernel for the shared expert at eight rows answers -m, on the CPU, through the real runtime."""
    import tvm_ffi.libinfo

    import kgen.serve.load  # noqa: F401  its device check is replaced below

    cc = shutil.which("cc")
    assert cc is not None
    out, source = tmp_path / "negate.o", Path(__file__).parent / "support" / "negate.c"
    include = Path(tvm_ffi.__file__).parent / "include"
    subprocess.run([cc, "-O1", "-fPIC", "-I", str(include), "-c", str(source), "-o", str(out)], check=True)
    monkeypatch.setenv("KGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KGEN_DISABLE", raising=False)
    monkeypatch.setattr(sys.modules["kgen.serve.load"], "device_capability", lambda: ARCH.rstrip("a"))
    contract = REGISTRY.get(OP).contract_sha256()
    case = make_case("negate", {8: WIN}, op_contract=contract, objects={8: out.read_bytes()})
    return fill(tmp_path / "set", case, current=Current({OP: contract}, 1), key=KEY)


def swapped(kernels: SetPath, ops: dict[str, tuple[int, int]], rows: int) -> tuple[SwapBinder, torch.Tensor]:
    """The binder, and the logits of two steps."""
    binder = SwapBinder(ARCH, "cpu", ops, kernels.path)
    engine = DecoderEngine(NANO, weights(), REGISTRY, ARCH, binder, binder.launches)
    run = engine.prepare(rows, 3, 1, CONTEXT, graph=False)
    return binder, run.teacher_forced(tokens(2, 3)).logits


def test_a_promoted_kernel_takes_the_seats_of_its_token_range_only(kernels: SetPath) -> None:
    stock = session(NANO, rows=8, wide=False).teacher_forced(tokens(2, 3)).logits
    binder, logits = swapped(kernels, {OP: (5, 8)}, rows=8)
    taken = [s for s in binder.seated if s.path == PROMOTED]
    assert Counter(s.problem for s in taken) == {f"{OP}/nano/t8/{ARCH}": 7}
    assert all(s.candidate and s.object_sha256 and not s.reason for s in taken)
    assert not torch.allclose(logits, stock), "the kernel in the seats has no effect"
    outside, same = swapped(kernels, {OP: (1, 4)}, rows=8)
    assert {s.reason for s in outside.seated if s.problem.startswith(OP)} == {"outside 1 to 4 rows"}
    assert torch.equal(same, stock)


def test_each_object_has_one_entry_in_the_launch_record(kernels: SetPath) -> None:
    binder, _ = swapped(kernels, {OP: (1, 64)}, rows=8)
    assert set(binder.launches()) == {s.object_sha256 for s in binder.seated if s.path == PROMOTED}


def test_a_doubt_means_stock_with_its_reason(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.ERROR, "kgen.serve")
    binder = SwapBinder(ARCH, "cpu", {OP: (1, 64)}, tmp_path)
    engine = DecoderEngine(NANO, weights(), REGISTRY, ARCH, binder, binder.launches)
    engine.prepare(1, 1, 1, CONTEXT, graph=False)
    (reason,) = {s.reason for s in binder.seated if s.problem.startswith(OP)}
    assert "no kernel is promoted" in reason and binder.launches() == {}
    assert {s.reason for s in binder.seated if not s.problem.startswith(OP)} == {"not asked for"}
    assert all(s.path == STOCK for s in binder.seated)
