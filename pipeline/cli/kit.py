"""kgen kit and kgen ingest: gates on somebody's GPU, and what comes back."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import (
    CacheOption,
    JsonOption,
    RunsOption,
    SetOption,
    TraceOption,
    cache_at,
    find_candidate,
    find_op,
    find_run,
    places,
    runs_at,
    trace_at,
)

if TYPE_CHECKING:
    from kgen.gates.kit import Contents
    from kgen.gates.kit_units import Carried
    from kgen.records import BuildRecord
    from kgen.store import Blobs, CandidateFolder, Run


def register(app: typer.Typer) -> None:
    app.command("kit")(kit)
    app.command("ingest")(ingest)


def kit(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs: ids, parts of them, folders, or 'latest' (the default)."),
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = "kit.pyz",
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", help="Only these: by id, of one run by number too.")
    ] = None,
    python: Annotated[
        list[str] | None, typer.Option("--python", metavar="X.Y", help="Only for these Pythons (default: all).")
    ] = None,
    flavour: Annotated[
        list[str] | None, typer.Option("--flavour", metavar="cuNN", help="Only for torch of these CUDA majors.")
    ] = None,
    routing_trace: TraceOption = "",
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
    json: JsonOption = False,
) -> None:
    """Write one file that runs the GPU gates of runs anywhere: Python, torch, cc and a GPU, no network."""
    from kgen.gates.kit import FLAVOURS, PYTHONS, build
    from kgen.gates.routing import facts, said
    from kgen.store import set_path

    pythons, flavours = _among(python, PYTHONS, "Python"), _among(flavour, FLAVOURS, "CUDA flavour")

    found = [find_run(name, runs) for name in run or ["latest"]]
    chosen = _chosen(found, candidate or ())
    target, place, trace = Path(out).expanduser().absolute(), cache_at(cache), trace_at(routing_trace)
    if not target.parent.is_dir():
        raise boundary.Usage(f"there is no folder {target.parent}")
    if any(_of_ranks(each) for each in found):
        _ranks_kit(found, chosen[0], target, place, pythons, flavours, json)
        return
    carried = [_carried(each, names, set_path(kernels).path, place) for each, names in zip(found, chosen, strict=True)]
    made = build(carried, target, place, trace=trace, pythons=pythons, flavours=flavours)
    if json:
        output.emit({"schema": "kgen.kit-file/1", **{k: str(v) if k == "path" else v for k, v in vars(made).items()}})
        return
    size, archs = made.bytes / 2**20, ", ".join(made.archs)
    count, start = sum(len(each.candidates) for each in carried), f"python {shlex.quote(made.path.name)}"
    how = f", {said([facts(trace)])}" if trace else ""
    output.data(f"{made.path}: {count} candidates at {made.problems} points ({archs}), {size:.1f} MiB{how}")
    if len(found) == 1:
        output.data(f"on a GPU host:  {start}        writes evidence.json and raw.json.xz")
        output.data("then here:      kgen ingest evidence.json --raw raw.json.xz")
    else:
        output.data(f"on a GPU host:  {start}        writes evidence.RUN.json and raw.RUN.json.xz for each run")
        output.data("then here:      kgen ingest evidence.RUN.json   run by run")
    output.data("It carries the runs' keys: whoever holds it can sign evidence of them.")


def _among(wanted: Sequence[str] | None, known: Sequence[str], what: str) -> Sequence[str]:
    if strange := [each for each in wanted or () if each not in known]:
        raise boundary.Usage(f"no {what} {strange[0]!r} for kits; there are {', '.join(known)}")
    return tuple(each for each in known if each in wanted) if wanted else known


LEAST = 4  # characters of an id that name a candidate


def _chosen(runs: Sequence["Run"], names: Sequence[str]) -> list[Sequence[str]]:
    """The candidates named, run by run; a run of which none is named gives all. Raises Usage for a name nobody has."""
    if len(runs) == 1:
        return [names]
    ids = [[f.candidate().id[:12] for f in run.folders()] for run in runs]
    for name in names:
        if len(name) < LEAST or not any(found.startswith(name[:12]) for of_run in ids for found in of_run):
            raise boundary.Usage(f"none of these runs has a candidate {name!r}; of several runs they are named by id")
    return [[found for found in of_run if any(found.startswith(name[:12]) for name in names)] for of_run in ids]


def _carried(run: "Run", names: Sequence[str], kernels: Path, place: Path) -> "Contents":
    """What a kit takes of a run: the candidates named, or all that are staged, with mutants and rivals."""
    from kgen.gates.kit import Contents, KitCandidate
    from kgen.promotion.champions import champions
    from kgen.store.cache import objects_in

    blobs, carried = objects_in(place), []
    for folder in [find_candidate(run, name) for name in names] or _staged(run):
        builds = folder.builds()
        sound, broken = ([b for b in builds if bool(b.defect) is defect] for defect in (False, True))
        pieces = (
            tuple(_piece(b, blobs, run) for b in group) for group in (sound, broken, champions(kernels, sound, blobs))
        )
        carried.append(KitCandidate(folder.candidate().id, *pieces))
    if not any(c.artefacts for c in carried):
        raise boundary.Stopped(f"run {run.id} has no staged candidate to carry; see kgen runs show {run.id}")
    return Contents(find_op(run.info.op), run.id, run.key(), tuple(carried))


def _of_ranks(run: "Run") -> bool:
    from kgen.gates import kinds

    return not kinds.of(find_op(run.info.op)).here


def _ranks_kit(
    found: "Sequence[Run]",
    names: Sequence[str],
    target: Path,
    place: Path,
    pythons: Sequence[str],
    flavours: Sequence[str],
    json: bool,
) -> None:
    """The kit of an op of several ranks: one candidate, and a runner that starts a process a rank."""
    from kgen.gates.ranks.job import Carried
    from kgen.gates.ranks.pack import pack
    from kgen.store.cache import objects_in

    if len(found) > 1:
        raise boundary.Usage("a kit of several ranks carries one run")
    (run,), blobs = found, objects_in(place)
    chosen = [find_candidate(run, name) for name in names] or _staged(run)[:1]
    if len(chosen) != 1:
        said = "carries one candidate" if chosen else "finds no staged candidate; see kgen runs show " + run.id
        raise boundary.Stopped(f"a kit of several ranks {said}")
    pieces = [_piece(build, blobs, run) for build in chosen[0].builds() if not build.defect]
    built = [(Carried(piece.record), piece.object.read_bytes()) for piece in pieces]
    made = pack(built, target, place, pythons=pythons, flavours=flavours)
    if json:
        output.emit({"schema": "kgen.ranks-file/1", **{k: str(v) if k == "path" else v for k, v in vars(made).items()}})
        return
    size, axes = made.bytes / 2**20, pieces[0].record.problem.axes
    output.data(f"{made.path}: {chosen[0].short_id} at {made.problems} points, {axes['ranks']} ranks, {size:.1f} MiB")
    output.data(f"on a host with {axes['ranks']} GPUs:  python {shlex.quote(made.path.name)}        writes ranks.json")


def _staged(run: "Run") -> "list[CandidateFolder]":
    return [f for f in run.folders() if (v := f.verdict()) is not None and v.staged]


def _piece(build: "BuildRecord", blobs: "Blobs", run: "Run") -> "Carried":
    from kgen.gates.kit_units import Carried
    from kgen.store import IntegrityError
    from kgen.store.cache import OBJECT_SUFFIX

    path = blobs.find(build.object_sha256, OBJECT_SUFFIX)
    if path is None:
        text = f"{build.problem.key}: its object is not in the cache {blobs.root} (any more)"
        raise IntegrityError(f"{text}: {run.info.command or 'kgen propose'} builds it again")
    return Carried(build, path)


def ingest(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Evidence that a kit wrote; several are joined.")
    ],
    raw: Annotated[
        list[str] | None, typer.Option("--raw", metavar="FILE", help="Raw samples (default: beside it).")
    ] = None,
    counters: Annotated[
        list[str] | None, typer.Option("--counters", metavar="FILE", help="Hardware counters that a kit wrote.")
    ] = None,
    signers: Annotated[
        str,
        typer.Option("--signers", metavar="FILE", help="Insist on a signature of the statement by one of these (ssh)."),
    ] = "",
    trust: Annotated[bool, typer.Option("--trust", help="Take evidence of others, as self-reported.")] = False,
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="The run it is for (default: the one it names).")
    ] = "",
    runs: RunsOption = "",
    json: JsonOption = False,
) -> None:
    """Take in evidence from a kit: checked against this run's key, objects and rules; then promotable or refused."""
    from kgen.cli.attest import attested, keep
    from kgen.cli.propose import EXIT, conclude
    from kgen.gates.ingest import ingest as take
    from kgen.gates.ingest import read
    from kgen.loop.counting import keep_counters
    from kgen.loop.intake import ledger, take_in
    from kgen.loop.session import outcome
    from kgen.report import as_json

    documents = {name: _bytes(name) for name in files}
    statements = attested(documents, signers)
    named = run or next((part.run for name, data in documents.items() for part in read(name, data)), "")
    if not named:
        raise boundary.Usage(f"{', '.join(files)}: holds no evidence")
    found = _run_of(named, runs)
    op = find_op(found.info.op)
    samples = list(raw or [])
    if not samples:
        samples = [str(p) for name in files if (p := _raw_of(name)).is_file()]
    with found.lock():
        taken = take(documents, {name: _bytes(name) for name in samples}, ledger(found, op), trust)
        judged = [take_in(found, each) for each in taken]
        keep(found, statements)
        kept = keep_counters(found, {name: _bytes(name) for name in counters or ()})
        found.finish(outcome([v for f in found.folders() if (v := f.verdict()) is not None]))
    document = conclude(found, op, places(runs))
    if kept:
        output.say(f"counters of {kept} candidates are kept for the diagnosis; they are no part of any verdict")
    for each, verdict in zip(taken, judged, strict=True):
        words = "promotable" if verdict.promotable else "refused" if verdict.failed else "incomplete"
        output.say(f"{each.candidate[:12]}: {each.trust} evidence taken: {words}")
    if json:
        output.emit(as_json(document))
    ended = outcome(judged)
    raise typer.Exit(EXIT[ended])


def _raw_of(name: str) -> Path:
    """The raw samples that a kit wrote with an evidence file: raw.json.xz, or raw.RUN.json.xz for evidence.RUN.json."""
    path, kind = Path(name), "evidence."
    rest = path.name.removeprefix(kind) if path.name.startswith(kind) else "json"
    return path.with_name(f"raw.{rest}.xz")


def _run_of(name: str, runs: str) -> "Run":
    try:
        return runs_at(runs).find(name)
    except ValueError as error:
        raise boundary.Usage(f"the evidence is of run {name}, which is not here ({error}); --runs or --run") from None


def _bytes(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise boundary.Usage(f"cannot read {name}: {error.strerror}") from None
