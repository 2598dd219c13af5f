"""Exercises that need a model that answers: tasks, long prompts, drafts, grammars, sampling; in a runner process."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import torch

from kgen.gates.modeleval.exercise import LOOKUP, Exercise
from kgen.gates.modeleval.perform import Done
from kgen.gates.modeleval.questions import answer_room, padded, questions, seed_of
from kgen.gates.modeleval.stage import Batch, Stage
from kgen.model.decoder.prefill import prefill
from kgen.model.generation.lookup import LookupDrafter
from kgen.model.generation.protocol import TokenConstraint
from kgen.model.generation.sampling import Sampling, SamplingRows, draw
from kgen.model.generation.speculative import Request, generate
from kgen.model.generation.stopping import StopRules
from kgen.model.nano.vocabulary import EOS, PAD, token_bytes

T = TypeVar("T")
GRAMMAR = "kgen.model.generation.grammar"
CELLS = 64  # of the counts of drawn tokens: as many ranges of ids, and the ranks 0 to 62 and all others
SETTINGS = (Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=40, top_p=0.9))


class Generation:
    """A batch under kgen.model.generation; logits that are not finite are counted and taken for 0."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.not_finite = batch, 0

    @property
    def vocab(self) -> int:
        return self.batch.vocab

    def verify(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [rows, q] -> float32 logits [rows, q, vocab]."""
        logits = self.batch.verify(tokens.to(self.batch.device)).logits.float().cpu()
        self.not_finite += int((~torch.isfinite(logits).all(-1)).sum())
        return torch.nan_to_num(logits, nan=0.0, posinf=0.0, neginf=0.0).reshape(*tokens.shape, -1)

    def accept(self, counts: torch.Tensor) -> None:
        self.batch.accept(counts.to(self.batch.device))


def tasks(stage: Stage, exercise: Exercise, mode: str) -> Iterator[Done]:
    """answers int32 [items, room], -1 behind the end: stock reads the prompts, the side under test answers."""
    rows: list[list[int]] = []
    ran: list[Batch] = []
    for _, alike in groupby(questions(exercise, stage.seeds), key=lambda items: items[0].length):
        batches = list(alike)
        longest = max(len(item.prompt) for items in batches for item in items)
        batch = stage.prepare(exercise, mode, longest + max(answer_room(items) for items in batches))
        for items in batches:
            rows += answered(batch, [item.prompt for item in items], answer_room(items))
        batch.finish()
        ran.append(batch)
    yield Done(mode, {"answers": padded(rows)}, ran)


long = tasks  # the prompts are longer


def answered(batch: Batch, prompts: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    """The greedy tokens behind each prompt: a prefill of what all have in length, the rest side by side in steps."""
    batch.reset()
    filled = _filled_up(list(prompts), batch.count)
    shared = min(len(p) for p in filled) - 1
    if shared:
        ids = torch.tensor([p[:shared] for p in filled], device=batch.device)
        prefill(batch.session, ids.T.contiguous())
    return _answers(batch, [p[shared:] for p in filled], room)[: len(prompts)]


def _filled_up(items: list[T], count: int) -> list[T]:
    """With the first one again at the end, until there are `count`."""
    return [*items, *[items[0]] * (count - len(items))]


def _answers(batch: Batch, prompts: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    """Prompts of any lengths, side by side, each followed by its own greedy tokens; no wait for the device."""
    longest = max(len(p) for p in prompts)
    given = torch.tensor([[*p, *[PAD] * (longest - len(p))] for p in prompts], device=batch.device).T
    lengths = torch.tensor([len(p) for p in prompts], device=batch.device)
    token, said = given[0], []
    for step in range(longest - 1 + room):
        best = batch.decode(token).best.to(torch.int64)
        said.append(best)
        following = given[step + 1] if step + 1 < longest else best
        token = torch.where(step + 1 < lengths, following, best)
    table = torch.stack(said, dim=1).tolist()
    return [row[len(p) - 1 : len(p) - 1 + room] for row, p in zip(table, prompts, strict=True)]


@dataclass(frozen=True)
class WrongDrafter:
    """Guesses that hardly ever come true, so that nearly every step is rolled back."""

    count: int
    vocab: int

    def __call__(self, histories: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor([[(7 * h[-1] + 31 * i + 13) % self.vocab for i in range(self.count)] for h in histories])


def verify(stage: Stage, exercise: Exercise, mode: str) -> Iterator[Done]:
    """plain and drafted [steps, count]: the same greedy requests without and with drafts; not_finite [1]."""
    (items,) = questions(exercise, stage.seeds)
    rules = StopRules(max_tokens=exercise.steps)
    requests = [Request(item.prompt, rules) for item in items]
    longest = max(len(item.prompt) for item in items)
    found, batches, broken = {}, [], 0
    for name, q in (("plain", 1), ("drafted", exercise.q)):
        steps = -(-longest // q) + exercise.steps + 1
        engine = Generation(stage.prepare(exercise, mode, steps * q, q=q))
        drafter = LookupDrafter(q - 1) if exercise.drafter == LOOKUP else WrongDrafter(q - 1, engine.vocab)
        done = generate(engine, requests, q, drafter if q > 1 else None)
        engine.batch.finish()
        found[name] = torch.tensor([c.tokens for c in done]).T
        found[f"{name} steps"] = torch.tensor([c.steps for c in done])
        batches.append(engine.batch)
        broken += engine.not_finite
    yield Done(mode, {**found, "not_finite": torch.tensor([broken])}, batches)


def constrained(stage: Stage, exercise: Exercise, mode: str) -> Iterator[Done]:
    """answers int32 [items, steps]; or, without the grammar library, a word that says so and no answer."""
    try:
        grammar = importlib.import_module(GRAMMAR)  # by name: no process of the gate needs the library for the rest
    except ImportError as error:
        yield Done(mode, {}, [], {"lacks": f"constrained output needs {error.name}, which is not installed"})
        return
    batches = questions(exercise, stage.seeds)
    longest = max(len(item.prompt) for items in batches for item in items)
    engine = Generation(stage.prepare(exercise, mode, longest + exercise.steps + 1))
    vocabulary = grammar.Vocabulary.of(engine.vocab, lambda token: token_bytes(token) or b"", [EOS])
    rules = StopRules(exercise.steps, frozenset({EOS}))
    rows: list[list[int]] = []
    for items in batches:
        engine.batch.reset()
        asked: list[Request] = []
        for item in _filled_up(items, engine.batch.count):
            schema = grammar.JsonSchema(item.schema, compact=True)
            constraint: TokenConstraint = grammar.Constraint(schema, vocabulary)
            asked.append(Request(item.prompt, rules, constraint=constraint))
        rows += [list(c.tokens) for c in generate(engine, asked)[: len(items)]]
    found = {"answers": padded(rows), "not_finite": torch.tensor([engine.not_finite])}
    yield Done(mode, found, [engine.batch])


def sampling(stage: Stage, exercise: Exercise, mode: str) -> Iterator[Done]:
    """counts int64 [settings, 2, CELLS] of tokens drawn at every given context: by range of ids, and by rank."""
    batch = stage.prepare(exercise, mode, exercise.steps)
    (items,) = questions(exercise, stage.seeds)
    ids = torch.tensor([[item.prompt[t % len(item.prompt)] for item in items] for t in range(exercise.steps)])
    each, broken = exercise.count * exercise.draws, 0
    base = seed_of(stage.seeds.draws, exercise.name) >> 8
    columns = [
        SamplingRows.of([_seeded(s, base + n * each + i) for i in range(each)], batch.device)
        for n, s in enumerate(SETTINGS)
    ]
    counts = torch.zeros(len(SETTINGS), 2, CELLS, dtype=torch.int64, device=batch.device)
    for step, row in enumerate(ids.to(batch.device)):
        logits = batch.decode(row).logits.float()
        for n, rows in enumerate(columns):
            at = torch.full((each,), step, device=batch.device)
            drawn = draw(logits.repeat_interleave(exercise.draws, 0), rows, at).view(exercise.count, -1)
            counts[n] += _counted(logits, drawn)
    broken = each * exercise.steps * len(SETTINGS) - int(counts[:, 0].sum())
    yield Done(mode, {"counts": counts, "not_drawn": torch.tensor([broken])}, [batch])


def _seeded(settings: Sampling, seed: int) -> Sampling:
    return Sampling(settings.temperature, settings.top_k, settings.top_p, seed)


def _counted(logits: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """int64 [2, CELLS] of drawn [rows, draws]; what could not be drawn (-1) is left out.

    Equal logits have ranks in the order of their ids, so that the share of a rank hardly moves when a rounding makes
    two logits equal.
    """
    fine, ids = drawn >= 0, drawn.clamp_min(0)
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices
    ranks = torch.empty_like(order).scatter_(
        1, order, torch.arange(logits.shape[1], device=order.device).expand_as(order)
    )
    rank = ranks.gather(1, ids).clamp_max(CELLS - 1)
    place = ids * CELLS // logits.shape[1]
    return torch.stack([torch.bincount(cells[fine], minlength=CELLS) for cells in (place, rank)])
