"""What a run will likely take, in one line, before it begins: from earlier runs of the op here, and the first prompt.

    estimate(runs, op, settings, endpoint) -> "at most 6 candidates: about 40 s of compiling ...; ..."

Seconds are the means of the latest run that has any; what nobody has measured, and what has no price, is "unknown".
Not covered: limits; those hold whatever was estimated.
"""

from pathlib import Path

from kgen.contract.op import Op
from kgen.loop import matrix
from kgen.loop.ledger import Account, Line, account
from kgen.loop.settings import Settings
from kgen.loop.spending import PROPOSE
from kgen.proposers.base import ProposalRequest, Usage
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.render import packaged
from kgen.records import GATES
from kgen.store.errors import IntegrityError
from kgen.store.runs import Runs

LOOKED_AT = 20  # of the latest runs


def estimate(runs: Runs, op: Op, settings: Settings, endpoint: Endpoint | None = None) -> str:
    """`endpoint`: the model that designs, if one is asked."""
    before = measured(runs, op)
    parts = [_seconds(before, settings)]
    if endpoint is not None:
        parts.append(_tokens(op, settings, endpoint))
    return f"estimate: at most {settings.candidates} candidates; {'; '.join(parts)}"


def measured(runs: Runs, op: Op) -> Account | None:
    """The account of the latest run of this op that has built something."""
    for run in list(reversed(runs.list()))[:LOOKED_AT]:
        try:
            found = account(run) if run.info.op == op.name else None
            if found is not None and any(map(_built, found.lines)):
                return found
        except IntegrityError:
            continue
    return None


def _built(line: Line) -> bool:
    return line.gate == GATES[0] and line.wall_s >= 0.5  # less is a cache's doing


def _seconds(before: Account | None, settings: Settings) -> str:
    if before is None:
        return "time unknown: no earlier run of this op here"
    names = {line.candidate for line in before.lines if line.candidate}
    each = before.wall_s / max(1, len(names))
    lines = [line for line in before.by_gate() if line.gate in GATES and line.wall_s >= 0.5]
    gates = ", ".join(f"{line.gate} {line.wall_s / max(1, len(names)):.0f} s" for line in lines)
    minutes = min(settings.minutes, each * settings.candidates / 60)
    gpu = before.total.gpu_s / max(1, len(names)) * settings.candidates
    said = f"about {minutes:.1f} min ({gates or f'{each:.1f} s'} each, as in {before.run})"
    return f"{said}, {f'{gpu:.0f}' if gpu else 'unknown'} GPU-seconds"


def _tokens(op: Op, settings: Settings, endpoint: Endpoint) -> str:
    problems = matrix.asked(op, settings)
    prompt = packaged().prompt(ProposalRequest(op=op, problems=problems, archs=settings.archs, run=Path()))
    tokens = (len(prompt.system) + len(prompt.user)) // 3
    said = f"a first prompt of about {tokens} tokens, answers of at most {endpoint.max_tokens}"
    most = endpoint.cost_usd(Usage(prompt_tokens=tokens, completion_tokens=endpoint.max_tokens))
    if most is None:
        return f"{said}; price unknown ({PROPOSE} costs are not counted)"
    limit = f", --max-usd {settings.max_usd:g}" if settings.max_usd else ""
    return f"{said}; at most {most:.4f} USD a question, {most * settings.candidates:.2f} USD in all{limit}"
