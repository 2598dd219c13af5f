"""kgen propose and kgen resume: the loop, watched."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgen.cli import boundary, output
from kgen.cli.common import (
    AxisOption,
    CacheOption,
    JsonOption,
    QuietOption,
    RunArgument,
    RunsOption,
    SetOption,
    axes_of,
    cache_at,
    checked,
    find_op,
    find_run,
    one_of,
    places,
    runs_at,
)
from kgen.cli.config import ConfigOption
from kgen.cli.executors import ExecutorOption, RayAddressOption, WorkersOption, executor_of

if TYPE_CHECKING:
    from kgen.contract.op import Op
    from kgen.loop.settings import Settings
    from kgen.pool.base import Executor
    from kgen.proposers.base import Proposer
    from kgen.report import Document
    from kgen.store import Run

EXIT: Mapping[str, int] = {
    "promotable": boundary.OK,
    "staged": boundary.OK,
    "refused": boundary.FAILED,
    "nothing": boundary.FAILED,
    "error": boundary.INFRASTRUCTURE,
}
Arch = Annotated[list[str] | None, typer.Option("--arch", help="Claimed architecture; repeat for several.")]
Dims = Annotated[list[str] | None, typer.Option("--dims", help="Only these dims; repeat for several.")]
Tokens = Annotated[list[int] | None, typer.Option("--tokens", help="Only these token bins; repeat for several.")]
Proposers = Annotated[
    str, typer.Option("--proposer", help="search, openai, mailbox or replay (default: see kgen doctor).")
]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="Rounds at most (search: 1, writers: 6).")]
Candidates = Annotated[
    int | None, typer.Option("--candidates", "--max-candidates", min=1, help="Candidates at most (search: 24).")
]
Minutes = Annotated[float, typer.Option("--minutes", "--max-minutes", help="Wall time at most.")]
GpuSeconds = Annotated[
    float | None, typer.Option("--max-gpu-seconds", min=0.0, help="Seconds of GPU leases at most (0: no limit).")
]
Beam = Annotated[int | None, typer.Option("--beam", min=1, help="Candidates that are built on at a time (4).")]
Explore = Annotated[
    float | None, typer.Option("--explore", min=0.0, max=1.0, help="Share of asks for a fresh design (0.25).")
]
Parallel = Annotated[int | None, typer.Option("--parallel", min=1, help="Questions to a model at once (4).")]
Patience = Annotated[int | None, typer.Option("--patience", min=0, help="End after so many rounds without gain.")]
StopRoofline = Annotated[
    float | None,
    typer.Option("--stop-roofline", min=0.0, max=1.0, help="End when a timed candidate reaches this share of it."),
]
Interpret = Annotated[
    bool, typer.Option("--interpret/--no-interpret", help="Without a GPU, check numbers in the PTX interpreter.")
]
CountersOption = Annotated[
    bool, typer.Option("--counters", help="Read hardware counters of finalists with Nsight Compute, off the clock.")
]
Unsafe = Annotated[bool, typer.Option("--unsafe-no-sandbox", help="Build without a sandbox; never promotable.")]


SearchOption = Annotated[
    str, typer.Option("--search", help="How search chooses points: tpe, nsga (both by optuna) or random.")
]


def register(app: typer.Typer) -> None:
    app.command("propose")(propose)
    app.command("resume")(resume)


def propose(
    op: Annotated[str, typer.Option("--op", help="The op; kgen ops lists them.")],
    seed: Annotated[int | None, typer.Option("--seed", help="Of the proposer and the plans (0).")] = None,
    proposer: Proposers = "",
    replay: Annotated[str, typer.Option("--replay", metavar="RUN", help="The run that replay reads.")] = "",
    search: SearchOption = "",
    mailbox: Annotated[
        str,
        typer.Option("--mailbox", metavar="DIR", help="Folder of the mailbox (default: in the run folder)."),
    ] = "",
    rounds: Rounds = None,
    candidates: Candidates = None,
    minutes: Minutes = 60.0,
    max_usd: Annotated[float, typer.Option("--max-usd", min=0.0, help="Cost at most (0: no limit).")] = 0.0,
    max_gpu_seconds: GpuSeconds = None,
    config: ConfigOption = None,
    beam: Beam = None,
    explore: Explore = None,
    parallel: Parallel = None,
    patience: Patience = None,
    stop_roofline: StopRoofline = None,
    arch: Arch = None,
    dims: Dims = None,
    tokens: Tokens = None,
    axis: AxisOption = None,
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
    executor: ExecutorOption = "",
    ray_address: RayAddressOption = "",
    workers: WorkersOption = 0,
    promote: Annotated[bool, typer.Option("--promote", help="Promote what comes out promotable.")] = False,
    counters: CountersOption = False,
    interpret: Interpret = True,
    unsafe: Unsafe = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Propose kernels for an op and take them as far as this machine can: staged, or promotable with a GPU."""
    from kgen.loop.estimate import estimate
    from kgen.loop.session import begin
    from kgen.loop.settings import ARCHS, Settings
    from kgen.proposers.choose import MAKERS, choose
    from kgen.proposers.studies import METHODS

    found = find_op(op)
    proposer = one_of(
        "--proposer",
        proposer or ("replay" if replay else "mailbox" if mailbox else "search" if search else ""),
        ("", *MAKERS),
    )
    if mailbox and proposer != "mailbox":
        raise boundary.Usage("--mailbox DIR goes with --proposer mailbox: DIR is where its questions and answers lie")
    if bool(replay) != (proposer == "replay"):
        raise boundary.Usage("--proposer replay and --replay RUN go together: RUN is what to propose again")
    recorded = find_run(replay, runs) if replay else None
    source = recorded.path if recorded else Path(mailbox).expanduser().absolute() if mailbox else None
    choice = choose(proposer, source=source, flags=config or [], search=one_of("--search", search, ("", *METHODS)))
    name = choice.proposer.name
    if name == "search":
        _searchable(found.name)
    given = {"seed": seed, "rounds": rounds, "candidates": candidates, "beam": beam, "explore": explore}
    given |= {"parallel": parallel, "patience": patience, "stop_roofline": stop_roofline}
    asked = Settings(
        op=found.name,
        proposer=name,
        **_pace(name, given, recorded, search),
        minutes=minutes,
        max_usd=max_usd,
        max_gpu_seconds=max_gpu_seconds or 0.0,
        archs=tuple(arch or ARCHS),
        dims=tuple(dims or ()),
        bins=tuple(tokens or ()),
        axes=axes_of(axis or []),
        replay=str(recorded.path) if recorded else "",
        mailbox=str(source) if mailbox else "",
        interpret=interpret,
        counters=counters,
        unsafe=unsafe,
    )
    settings = checked(asked, found)
    output.log_to_stderr(quiet)
    if not quiet:
        estimated = estimate(runs_at(runs), found, settings, choice.endpoint)
        for line in (choice.line, *asked.remarks(found), estimated):
            output.say(line)
    executes = executor_of(executor, ray_address, workers, unsafe, quiet)
    run = begin(runs_at(runs), found, settings, shlex.join(["kgen", *sys.argv[1:]]))
    where = places(runs, kernels, cache)
    drive(run, found, settings, choice.proposer, cache_at(cache), kernels, where, promote, json, quiet, executes)


def _pace(name: str, given: Mapping[str, float | None], recorded: "Run | None", search: str = "") -> dict[str, Any]:
    """How the run is planned: as said, else as in the recording that it replays, else by what suits the proposer."""
    from kgen.loop.settings import BUDGETS, MODELLED_BUDGET, WRITER_BUDGET, read_settings

    said = {key: value for key, value in given.items() if value is not None}
    if recorded is not None:
        settings = read_settings(recorded.info.settings, f"{recorded.path}/run.json")
        return {**{key: getattr(settings, key) for key in given}, "search": settings.search, **said}
    if search:  # a point that is right is where such a search begins
        rounds, candidates = MODELLED_BUDGET
        patience = {"patience": said.get("rounds", rounds)}
        return {"search": search, "rounds": rounds, "candidates": candidates, **patience, **said}
    rounds, candidates = BUDGETS.get(name, WRITER_BUDGET)
    return {"rounds": rounds, "candidates": max(candidates, int(said.get("rounds", 0))), **said}


def _searchable(op: str) -> None:
    """Raises Usage where `search` could propose nothing."""
    from kgen.proposers.search import lacking

    if reason := lacking(op):
        raise boundary.Usage(
            f"{reason}: take --proposer mailbox (a person or an agent answers with files)"
            " or --proposer openai (a model endpoint: OPENAI_API_KEY)"
        )


def resume(
    run: RunArgument = "latest",
    minutes: Annotated[
        float | None, typer.Option("--minutes", "--max-minutes", help="A new limit of wall time.")
    ] = None,
    candidates: Annotated[int | None, typer.Option("--max-candidates", min=1, help="A new limit of them.")] = None,
    max_usd: Annotated[float | None, typer.Option("--max-usd", min=0.0, help="A new limit of cost.")] = None,
    max_gpu_seconds: GpuSeconds = None,
    config: ConfigOption = None,
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
    executor: ExecutorOption = "",
    ray_address: RayAddressOption = "",
    workers: WorkersOption = 0,
    promote: Annotated[bool, typer.Option("--promote", help="Promote what comes out promotable.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Take up a run that was interrupted, or whose skipped gates can run on this machine. Repeats nothing finished."""
    from dataclasses import replace

    from kgen.loop.settings import read_settings
    from kgen.proposers.choose import choose
    from kgen.proposers.tune import PARENT

    found = find_run(run, runs)
    settings = read_settings(found.info.settings, f"{found.path}/run.json")
    op = find_op(settings.op)
    limits = {"minutes": minutes, "candidates": candidates, "max_usd": max_usd, "max_gpu_seconds": max_gpu_seconds}
    changed: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    settings = checked(replace(settings, **changed), op)
    output.log_to_stderr(quiet)
    place = settings.replay or settings.mailbox or (found.path / PARENT if settings.proposer == "tune" else "")
    search = "" if settings.replay else settings.search
    source = Path(place) if place else None
    proposer = choose(settings.proposer, source=source, flags=config or [], search=search).proposer
    executes = executor_of(executor, ray_address, workers, settings.unsafe, quiet)
    where = places(runs, kernels, cache)
    drive(found, op, settings, proposer, cache_at(cache), kernels, where, promote, json, quiet, executes)


def drive(
    run: "Run",
    op: "Op",
    settings: "Settings",
    proposer: "Proposer",
    cache: Path,
    kernels: str,
    where: str,
    promote: bool,
    json: bool,
    quiet: bool,
    executor: "Executor",
) -> None:
    from kgen.cli.progress import Watcher
    from kgen.loop.session import work_on
    from kgen.store import set_path

    boundary.taken_up_by(f"kgen resume {run.id}{where}")
    if not quiet:
        output.say(f"run {run.id} in {run.path}")
    with Watcher(quiet, run, op) as watcher:
        ended = work_on(run, op, settings, proposer, cache, watcher, set_path(kernels).path, executor)
    if ended.why and not quiet:
        output.say(f"ended: {ended.why}")
    document = conclude(run, op, where)
    if ended.outcome == "promotable" and promote:
        from kgen.cli.sets import promote_run

        promote_run(run, "", kernels, cache, trust=False, json=json, where=where)
    elif json:
        from kgen.report import as_json

        output.emit(as_json(document))
    raise typer.Exit(EXIT[ended.outcome])


def conclude(run: "Run", op: "Op", where: str = "") -> "Document":
    """Write the report; show the summary table, its path and the next command, with `where` as `places` gives it."""
    from kgen.report import markdown, read
    from kgen.report.facts import label
    from kgen.report.judged import routing_in
    from kgen.store import StoreError

    document = read(run, op)
    path = run.path / "report.md"
    said = str(path)
    try:
        run.durable.write(path, markdown(document).encode("utf-8"))
    except StoreError as error:  # the run is what it is, also where it can only be read
        said = f"not written: {error}"
    rows = []
    for e in sorted(document.entries, key=lambda e: (not e.rank, e.rank, e.number)):
        cost = f"{e.ranked.us:.2f}" if e.ranked else ""
        stages = "  ".join(f"{r.code}" for r in e.results)
        rows.append([e.number, e.candidate.id[:12], label(e)[:48], cost, e.state, stages])
    measured = any(e.ranked and e.ranked.measured for e in document.entries)
    head = ["#", "candidate", "made by", "µs" if measured else "cost µs", "state", "gates"]
    how = routing_in(document)
    output.show_table(f"{op.name}: {document.outcome}{f'; {how}' if how else ''}", head, rows, right=(0, 3))
    output.data(f"report: {said}")
    output.data(f"next:   {document.next_command}{where}")
    return document
