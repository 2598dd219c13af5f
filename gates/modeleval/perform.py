"""Exercises with given or free tokens, as a runner process performs them: rows of logits, states, and tokens.

Each returns tensors by name for one mode, and the batches that it ran. Not covered: tasks and generation features
(perform_tasks); what the numbers mean (the judge).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kgen.gates.modeleval.exercise import FILLED, OTHER, Exercise
from kgen.gates.modeleval.questions import seed_of, token_ids
from kgen.gates.modeleval.stage import Batch, Stage
from kgen.model.decoder.session import Session
from kgen.model.decoder.state import CACHE_DTYPES

Tensors = dict[str, torch.Tensor]
WIDE = 64  # rows of a step that reads a continuation again


@dataclass(frozen=True)
class Done:
    """What one mode of an exercise left."""

    mode: str
    tensors: Tensors
    batches: list[Batch]
    words: dict[str, str] | None = None


def forced(stage: Stage, exercise: Exercise, mode: str) -> Iterator[Done]:
    """logits and hidden [kept steps, rows, ...]; states [checkpoints, layers, count, heads, 128, 128].

    Where the exercise wants them, heads [kept steps, rows, columns] too.
    """
    tokens = exercise.steps * exercise.q
    batch = stage.prepare(exercise, mode, exercise.context + tokens)
    if exercise.kind == FILLED:
        fill(batch.session, exercise, stage)
    ids = token_ids(exercise, stage.seeds, batch.vocab, exercise.steps, batch.device)
    everyone = torch.full((exercise.count,), exercise.q, dtype=torch.int32, device=batch.device)
    at = {exercise.steps * (i + 1) // exercise.states - 1 for i in range(exercise.states)}
    outs, states, heads = [], [], []
    for step, row in enumerate(ids):
        out = batch.verify(row)
        batch.accept(everyone)
        if step % exercise.every == 0:
            outs.append(out)
            heads += [batch.heads.rows(out.hidden.shape[0])] if batch.heads is not None else []
        if step in at:
            states.append(kept_states(batch.session))
    tensors = {name: torch.stack([getattr(out, name) for out in outs]) for name in ("logits", "hidden")}
    more = {name: torch.stack(kept) for name, kept in (("states", states), ("heads", heads)) if kept}
    yield Done(mode, tensors | more, [batch])


def kept_states(session: Session) -> torch.Tensor:
    """The recurrent states after all tokens of the last step: [layers, count, heads, 128, 128]."""
    slots = session.state.slots().reshape(session.step.requests, -1)[: session.count, -1].long()
    return torch.stack([s[slots] for s in session.state.s.values()])


def fill(session: Session, exercise: Exercise, stage: Stage) -> None:
    """A context as if it had been decoded: cache rows of unit rms, recurrent states warmed by their own recurrence."""
    state, config = session.state, session.step.config
    chosen = CACHE_DTYPES[dict(config.axes.get("mla_decode", {})).get("cache", "bf16")]
    for (layer, shard), cache in state.cache.items():
        gen = torch.Generator(cache.device).manual_seed(seed_of(stage.seeds.tokens, f"cache {layer} {shard}"))
        for block in torch.split(cache, 1024):  # pages
            drawn = torch.randn(block.shape, generator=gen, device=cache.device)
            block.copy_(drawn.to(chosen).to(block.dtype))
    op = stage.registry.get("kda_core")
    problem = op.problem(config.dims, exercise.rows, stage.arch, {"q": str(exercise.q)})
    for layer, s in state.s.items():
        seed = seed_of(stage.seeds.tokens, f"state {layer}")
        warm = op.inputs(problem, "warm", seed, stage.device)
        for name, own in (("s", s), ("conv", state.conv[layer])):
            value = warm[name]
            assert isinstance(value, torch.Tensor)
            own.copy_(value[: own.shape[0]])
            own[0] = 0  # belongs to nobody
    session.skip(exercise.context)


def free(stage: Stage, exercise: Exercise, mode: str) -> Iterator[Done]:
    """tokens [steps, count], finite bool [steps, count]; of stock also the tokens that `reread` finds."""
    batch = stage.prepare(exercise, mode, exercise.prompt + exercise.steps)
    prompt = token_ids(exercise, stage.seeds, batch.vocab, exercise.prompt, batch.device)[..., 0]
    tokens, finite = continued(batch, prompt, exercise.steps)
    yield Done(mode, {"tokens": tokens, "finite": finite}, [batch])
    if exercise.other and stage.side == "stock":
        again, own = reread(stage, exercise, mode, torch.cat([prompt, tokens[:-1]]))
        yield Done(f"{OTHER} {mode}", {"tokens": again[exercise.prompt - 1 :]}, [own])


def reread(stage: Stage, exercise: Exercise, mode: str, ids: torch.Tensor) -> tuple[torch.Tensor, Batch]:
    """The greedy token behind each of ids [length, count], read `other` at a time in wide verify steps: the same shape.

    Another batch composition than the one that said `ids`. Up to the first token that differs this is what free
    generation in that composition gives, since both have read the same until there.
    """
    q, (length, count) = exercise.other, ids.shape
    size = min(count, max(1, WIDE // q))
    own = stage.prepare(exercise, mode, length + q, requests=stage.rows_for(size * q) // q, count=size, q=q)
    everyone = torch.full((size,), q, dtype=torch.int32, device=own.device)
    found = []
    for part in _parts(torch.cat([ids, ids[-1:].expand(-length % q, -1)]), size):
        own.reset()
        said = []
        for window in torch.split(part, q):
            said.append(own.verify(window.T.contiguous()).best.view(size, q).T)
            own.accept(everyone)
        found.append(torch.cat(said)[:length].to(torch.int64))
    return torch.cat(found, dim=1)[:, :count], own


def _parts(ids: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Columns in batches of `size`; the last one is filled up with its first column, which is cut again later."""
    for start in range(0, ids.shape[1], size):
        part = ids[:, start : start + size]
        yield part if part.shape[1] == size else torch.cat([part, part[:, :1].expand(-1, size - part.shape[1])], 1)


def continued(batch: Batch, prompt: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy continuation of prompt [length, count]: int64 tokens and bool "logits are finite", both [steps, count]."""
    batch.reset()
    for row in prompt[:-1]:
        batch.decode(row)
    token, tokens, finite = prompt[-1], [], []
    for _ in range(steps):
        out = batch.decode(token)
        token = out.best.to(torch.int64)
        tokens.append(token)
        finite.append(torch.isfinite(out.logits).all(-1))
    return torch.stack(tokens), torch.stack(finite)
