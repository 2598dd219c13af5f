"""kgen report RUN: a run as a page, a comment for a pull request, JSON or JUnit. kgen catalogue: a set's pages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption, RunArgument, RunsOption, SetOption, find_op, find_run, one_of

if TYPE_CHECKING:
    from kgen.report import Document
    from kgen.report.page import Before

FORMS = ("md", "html", "json", "junit")


def register(app: typer.Typer) -> None:
    app.command("report")(report)
    app.command("catalogue")(catalogue)


def report(
    run: RunArgument = "latest",
    form: Annotated[str, typer.Option("--format", help="md, html, json or junit.")] = "md",
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Write it there instead of to stdout.")] = "",
    runs: RunsOption = "",
    kernels: SetOption = "",
    json: JsonOption = False,
) -> None:
    """The report of a run: verdict, gates, numbers, speed, environment, provenance."""
    from kgen.report import as_json, read
    from kgen.store import DURABLE

    asked = one_of("--format", form, FORMS)
    form = "json" if json else asked
    found = find_run(run, runs)
    document = read(found, find_op(found.info.op))
    if form == "json" and not out:
        output.emit(as_json(document))
        return
    data = _written(document, form, kernels)
    if out:
        DURABLE.write(Path(out).expanduser().absolute(), data)
        output.say(f"report: {out}")
        return
    output.data(data.decode("utf-8").rstrip("\n"))


def _written(document: "Document", form: str, kernels: str) -> bytes:
    from kgen.report import as_json, markdown
    from kgen.store.documents import json_bytes

    if form == "json":
        return json_bytes(as_json(document))
    if form == "junit":
        from kgen.report.junit import junit

        return junit(document)
    if form == "html":
        from kgen.report.page import of_run

        before, why = _before(document, kernels)
        return of_run(document, before, why).encode("utf-8")
    return markdown(document).encode("utf-8")


def _before(document: "Document", kernels: str) -> "tuple[Before | None, str]":
    """The champion that the run's candidate would follow; without one, why. An unreadable set stops no report."""
    from kgen.report.catalogue import serving
    from kgen.report.page import STOCK
    from kgen.store import IntegrityError, StoreError, set_path
    from kgen.store.kernelset import KernelSet

    if document.subject is None:
        return None, STOCK
    try:
        before = serving(KernelSet(set_path(kernels).path), document.op.name, document.settings.archs)
    except (IntegrityError, StoreError) as error:
        return None, f"Not known: {error}"
    return before, STOCK


def catalogue(
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="Folder to write the pages to.")],
    kernels: SetOption = "",
    json: JsonOption = False,
) -> None:
    """Pages over a kernel set: all ops, the champions of each op, each promoted kernel. Open index.html there."""
    from kgen.cli.sets import current
    from kgen.ops import REGISTRY
    from kgen.report.catalogue import site
    from kgen.store import DURABLE, set_path
    from kgen.store.kernelset import KernelSet

    files = site(KernelSet(set_path(kernels).path), REGISTRY.every, current())
    folder = Path(out).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        DURABLE.write(folder / name, text.encode("utf-8"))
    if json:
        output.emit({"schema": "kgen.catalogue/1", "folder": str(folder), "files": sorted(files)})
    else:
        output.say(f"catalogue: {folder / 'index.html'} and {len(files) - 1} more pages")
