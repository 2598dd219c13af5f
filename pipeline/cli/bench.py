"""kgen bench-agent: what proposers get from the fixed set of problems."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import JsonOption, QuietOption, one_of
from kgen.cli.config import ConfigOption

if TYPE_CHECKING:
    from kgen.bench.problems import BenchProblem
    from kgen.bench.table import Row
    from kgen.proposers.base import Proposer

PROPOSERS = ("search", "replay", "openai")


def register(app: typer.Typer) -> None:
    app.command("bench-agent")(bench)


def bench(
    proposer: Annotated[
        list[str] | None,
        typer.Option("--proposer", help="search, replay or openai; repeat for several (the first two)."),
    ] = None,
    problem: Annotated[list[str] | None, typer.Option("--problem", help="Only these; repeat for several.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the proposers.")] = 0,
    max_usd: Annotated[
        float, typer.Option("--max-usd", min=0.0, help="Cost of a problem at most (0: no limit).")
    ] = 1.0,
    record: Annotated[Path | None, typer.Option("--record", help="JSON file that the rows are put into.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run proposers on the fixed problems, and say what they came to. A row of the prompts' hash goes into --record."""
    from kgen.bench.problems import problems
    from kgen.bench.table import HEAD, add, compared, lines, read

    names = [one_of("--proposer", name, PROPOSERS) for name in proposer or PROPOSERS[:2]]
    chosen = [p for p in problems() if not problem or p.name in problem]
    if unknown := set(problem or ()) - {p.name for p in chosen}:
        known = ", ".join(p.name for p in problems())
        raise boundary.Usage(f"no problem is called {sorted(unknown)[0]!r}; known: {known}")
    if record is not None and problem:
        raise boundary.Usage("--record keeps whole rows: leave out --problem")
    output.log_to_stderr(quiet)
    rows = []
    for name in names:
        row = _row(name, chosen, seed, max_usd, config or [], quiet)
        rows.append(row)
        if record is not None:
            add(record, row)
            if not quiet and (said := compared(read(record), row)):
                output.say(said)
        if not json:
            title = f"{row.proposer}{f' {row.model}' if row.model else ''}, prompts {row.prompts[:12]}"
            output.show_table(title, list(HEAD), lines(row), right=tuple(range(1, len(HEAD) - 1)))
    if json:
        output.emit({"schema": "kgen.bench/1", "rows": rows})
    if breaches := [f"{row.proposer}: {text}" for row in rows for text in row.breaches]:
        raise boundary.Stopped(f"not as expected: {'; '.join(breaches)}")


def _row(
    name: str, chosen: "Sequence[BenchProblem]", seed: int, max_usd: float, config: Sequence[str], quiet: bool
) -> "Row":
    from kgen.bench.running import KeptExecutor, attempt
    from kgen.bench.table import line, row
    from kgen.proposers.choose import choose

    def make(answers: Path) -> "Proposer":
        return choose(name, source=answers if name == "replay" else None, flags=config).proposer

    endpoint = choose(name, flags=config).endpoint if name == "openai" else None
    load, results, executor = os.getloadavg()[0], [], KeptExecutor()
    try:
        with tempfile.TemporaryDirectory(prefix="kgen-bench-") as folder:
            for each in chosen:
                usd = max_usd if endpoint else 0.0
                results.append(attempt(each, make, Path(folder), executor, usd, seed))
                if not quiet:
                    output.say("  ".join([*line(results[-1]), *results[-1].breaches]))
    finally:
        executor.end()
    return row(name, endpoint.model if endpoint else "", seed, load, results)
