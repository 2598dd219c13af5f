"""kgen runs cost RUN: tokens, money, and seconds of wall, CPU and GPU; by gate, by candidate, by promoted kernel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kgen.cli import output
from kgen.cli.common import JsonOption, RunArgument, RunsOption, SetOption, find_run

if TYPE_CHECKING:
    from kgen.loop.ledger import Line

HEAD = ("requests", "prompt", "of it cached", "answers", "of it reasoning", "USD", "wall s", "CPU s", "GPU s")


def cost(run: RunArgument = "latest", runs: RunsOption = "", kernels: SetOption = "", json: JsonOption = False) -> None:
    """What a run has cost, for each gate, candidate and promoted kernel."""
    from kgen.loop.ledger import account
    from kgen.store import set_path

    found = account(find_run(run, runs))
    promoted = found.promoted(set_path(kernels).path)
    if json:
        kinds: dict[str, Any] = {"gates": found.by_gate(), "candidates": found.by_candidate(), "promoted": promoted}
        output.emit({"schema": "kgen.runs-cost/1", "account": found, "total": found.total, **kinds})
        return
    by_candidate = sorted(found.by_candidate(), key=lambda line: line.candidate or "~")
    _table(f"{found.run}: by gate", "gate", [(line.gate, line) for line in found.by_gate()], found.measured)
    _table("by candidate", "candidate", [(line.candidate or "(none)", line) for line in by_candidate], found.measured)
    if promoted:
        _table("by promoted kernel", "kernel", [(line.candidate[:12], line) for line in promoted], found.measured)
    _table("", "all", [("the run", found.total)], found.measured)


def _table(title: str, what: str, lines: Sequence[tuple[str, "Line"]], measured: bool) -> None:
    rows = []
    for name, line in lines:
        u = line.usage
        counts = (u.attempts, u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens)
        usd = "" if u.cost_usd is None else f"{u.cost_usd:.4f}"
        cpu = f"{line.cpu_s:.1f}" if measured else ""
        rows.append([name, *(c or "" for c in counts), usd, f"{line.wall_s:.1f}", cpu, f"{line.gpu_s:.1f}"])
    output.show_table(title, [what, *HEAD], rows, right=range(1, len(HEAD) + 1))
