"""kgen promote, rollback, verify, status: what a kernel set holds, and changing it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import (
    CacheOption,
    JsonOption,
    RunArgument,
    RunsOption,
    SetOption,
    cache_at,
    find_candidate,
    find_op,
    find_run,
    places,
)

if TYPE_CHECKING:
    from kgen.promotion import Current, Finding, StalePromotion, StatusRow
    from kgen.records import Manifest
    from kgen.store import Run, SetPath


FULL_SECONDS = 480.0  # of one part of `verify --full`


def register(app: typer.Typer) -> None:
    app.command("promote")(promote)
    app.command("rollback")(rollback)
    app.command("verify")(verify)
    app.command("status")(status)


def current() -> "Current":
    """The rules that hold now."""
    from kgen.gates.contract import GATE_CONTRACT
    from kgen.ops import REGISTRY
    from kgen.promotion import Current

    return Current({name: op.contract_sha256() for name, op in REGISTRY.every.items()}, GATE_CONTRACT)


def target(kernels: str) -> "SetPath":
    from kgen.store import set_path

    return set_path(kernels)


def promote(
    run: RunArgument = "latest",
    candidate: Annotated[str, typer.Option("--candidate", help="Which one, by number or id (default: the best).")] = "",
    trust: Annotated[bool, typer.Option("--trust", help="Take evidence that this run's key has not signed.")] = False,
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
    json: JsonOption = False,
) -> None:
    """Put a promotable kernel with its objects and evidence into the set, in one step."""
    where = places(runs, kernels, cache)
    promote_run(find_run(run, runs), candidate, kernels, cache_at(cache), trust, json, where)


def promote_run(
    run: "Run", candidate: str, kernels: str, cache: Path, trust: bool, json: bool, where: str = ""
) -> None:
    """Raises Refused with the reason when the case does not suffice. `where`: as `places` gives it."""
    from kgen.promotion import gather
    from kgen.promotion import promote as promote_case
    from kgen.report import read
    from kgen.store.cache import objects_in

    document = read(run, find_op(run.info.op))
    if not candidate and document.subject is None:
        raise boundary.Stopped(f"run {run.id} has no candidate; next: {document.next_command}{where}")
    name = candidate or (document.subject.folder if document.subject else "")
    place = target(kernels)
    case = gather(find_candidate(run, name), objects_in(cache))
    promotion = promote_case(place, case, current(), run.key(), trust)
    labels = list(promotion.labels.values())
    replaced = sorted({seq for seq in promotion.previous.values() if seq})
    if json:
        output.emit({"schema": "kgen.promoted/1", "set": str(place.path), "promotion": promotion})
        return
    output.data(f"promoted {promotion.op} {promotion.candidate[:12]} for {promotion.arch} as #{promotion.seq}")
    output.data(f"  points   {labels.count('win')} win, {labels.count('tie')} tie")
    output.data(f"  evidence {promotion.trust}, {place.path / promotion.evidence}")
    output.data(f"  source   {place.path / promotion.source}")
    output.data(f"  before   {', '.join(f'#{seq}' for seq in replaced) or 'the stock op'}")
    output.data(f"next: kgen verify; to undo: kgen rollback {promotion.op} --arch {promotion.arch}")


def rollback(
    op: Annotated[str, typer.Argument(metavar="OP")],
    arch: Annotated[str, typer.Option("--arch", help="Only a promotion for this architecture.")] = "",
    kernels: SetOption = "",
    json: JsonOption = False,
) -> None:
    """Undo the newest promotion of an op that still serves; what served before serves again. Deletes nothing."""
    from kgen.promotion import rollback as roll_back

    place = target(kernels)
    done = roll_back(place, find_op(op).name, arch)
    if json:
        output.emit({"schema": "kgen.rolled-back/1", "seq": done.seq, "undone": done.undone.seq, "now": done.now})
        return
    before = sorted(set(done.now.values()))
    serving = ", ".join(f"#{seq}" if seq else "the stock op" for seq in before) or "nothing changed"
    output.data(f"rolled back #{done.undone.seq} ({op}, {done.undone.candidate[:12]}) as #{done.seq}")
    output.data(f"  now serving its {len(done.now)} points: {serving}")


def status(kernels: SetOption = "", json: JsonOption = False) -> None:
    """Which promoted kernel serves which point; in a checkout also which exploit cases a GPU has to run again."""
    from kgen.promotion import stale_promotions
    from kgen.promotion import status as rows_of
    from kgen.promotion.silicon import silicon
    from kgen.store import KernelSet

    place = target(kernels)
    manifest = KernelSet(place.path).manifest()
    rows = rows_of(manifest, current())
    old = [_again(place.path, manifest, promotion) for promotion in stale_promotions(rows)]
    exploits = silicon(Path.cwd(), current())
    if json:
        listed = [{name: getattr(row, name) for name in row.__dataclass_fields__} for row in rows]
        document = {"schema": "kgen.status/1", "set": str(place.path), "seq": manifest.seq, "stale": old}
        measured = {"gpu": exploits.gpu, "cases": exploits.cases, "stale": dict(exploits.stale)} if exploits else None
        output.emit({**document, "points": listed, "exploits": measured})
        return
    if not rows:
        output.data(f"{place.path}: no kernel is promoted; every op is served by its stock version")
    else:
        _show_points(f"{place.path}, seq {manifest.seq}", rows)
    for line in [*old, *([str(exploits)] if exploits else [])]:
        output.data(line)


def _show_points(title: str, rows: "Sequence[StatusRow]") -> None:
    head = ["op", "arch", "dims", "tokens", "kernel", "candidate", "label", "trust", "promoted", "stale"]
    lines = [
        [r.op, r.arch, r.dims, r.tokens, f"#{r.seq}", r.candidate[:12], r.label, r.trust, r.promoted, _mark(r.stale)]
        for r in rows
    ]
    output.show_table(title, head, lines, right=(3,))


def _mark(stale: str) -> str:
    return "stale" if stale else ""


def _again(place: Path, manifest: "Manifest", old: "StalePromotion") -> str:
    """One line about a promotion with evidence of older rules: why, what that means, and how to measure it again."""
    from kgen.store import runs_path

    source = next(p.source for p in manifest.promotions if p.seq == old.seq)
    command = f"kgen propose --op {old.op} --replay {old.run}"
    if not (runs_path() / old.run).is_dir():
        command = f"kgen propose --op {old.op} --proposer mailbox --candidates 1, answered with {place / source}"
    return (
        f"#{old.seq} {old.op} {old.candidate[:12]} {old.arch} is stale: {old.reason}; "
        f"it serves {old.points} points on, unproven by today's rules; next: {command}"
    )


def verify(
    kernels: SetOption = "",
    cache: CacheOption = "",
    rebuild: Annotated[bool, typer.Option(help="Build the sources again and compare.")] = True,
    gates: Annotated[bool, typer.Option(help="On a GPU: as --all.")] = True,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Insist on a GPU: all numbers, the whole set in one model, times at 1, 8, 64 tokens."
        ),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Insist on a GPU: every gate of every kernel. Resumable.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Begin no piece on the GPU that would end later (--full: 480).")
    ] = 0.0,
    statement: Annotated[
        str, typer.Option("--statement", metavar="FILE", help="Write an in-toto statement of each kernel that serves.")
    ] = "",
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Sign it with this ssh key: FILE.sig.")] = "",
    json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is not ok.")] = False,
) -> None:
    """Check a whole set: hashes, evidence, history, rebuilt machine code; with a GPU the gates as well."""
    from kgen.ops import REGISTRY
    from kgen.promotion import Outcome, RebuildUnavailable
    from kgen.promotion import verify as check
    from kgen.promotion.rebuild import gate_rebuilder

    if key and not statement:
        raise boundary.Usage("--key signs what --statement FILE writes")
    place, why, rebuilder = target(kernels), "", None
    try:
        rebuilder = gate_rebuilder(REGISTRY) if rebuild else None
    except RebuildUnavailable as reason:
        why = f"sources are not rebuilt: {reason}"
    if kernels and not place.path.is_dir():  # a default one may not be there yet; one that was named is a slip
        raise boundary.Usage(f"there is no kernel set {place.path}")
    report = check(place, current(), rebuilder)
    findings, left, failed = list(report.findings), 0, 0
    if (gates or every or full) and report.ok:
        from kgen.loop.reproving import reprove

        most = seconds or (FULL_SECONDS if full else math.inf)
        again = reprove(place, REGISTRY, cache_at(cache), output.say, full=full, seconds=most)
        findings, left, failed = [*findings, *again.findings], len(again.left), len(again.failed)
    ok = all(f.outcome is not Outcome.BAD for f in findings)
    if json:
        listed = [
            {"subject": f.subject, "check": f.check, "outcome": f.outcome, "message": f.message} for f in findings
        ]
        document = {"schema": "kgen.verified/1", "set": str(place.path), "ok": ok, "findings": listed, "note": why}
        output.emit({**document, "left": left, "errors": failed})
    else:
        _show(str(place.path), [f for f in findings if not quiet or f.outcome is not Outcome.OK], ok, why)
    if not ok:
        raise typer.Exit(boundary.INTEGRITY)
    if statement:
        from kgen.cli.attest import state

        state(place, findings, Path(statement), key)
    if left or failed:
        said = [f"{left} pieces are left"] * bool(left) + [f"{failed} pieces ended in an error"] * bool(failed)
        output.say(f"kgen: {' and '.join(said)}; the same command goes on with them")
        raise typer.Exit(boundary.INFRASTRUCTURE)
    if (every or full) and any(f.subject == "gates" for f in findings):
        raise boundary.Missing("nothing was run again: that takes a GPU of the kernels' architecture")


def _show(title: str, findings: "list[Finding]", ok: bool, why: str) -> None:
    rows = [[f.subject, f.check, f.outcome.value, f.message] for f in findings]
    if rows:
        output.show_table(title, ["what", "check", "outcome", ""], rows)
    if why:
        output.say(f"kgen: {why}")
    output.data(f"{title}: {'ok' if ok else 'NOT OK'}")
