"""The sections of the Markdown report that say what there is and where it comes from, each of the document."""

from kgen.report import facts
from kgen.report.document import Document
from kgen.report.text import cell, code, details, fenced, grid

SHOWN_LOGS = 12
COST = "The cost is a guess from the builds (kgen.loop.cost), summed over the quick points."


def built(doc: Document) -> str:
    """What the builder made, a line for each arch, dims and design: the ranges over the token bins."""
    builds = doc.subject.sound_builds if doc.subject else ()
    if doc.subject is None or not builds:
        return ""
    said = "; ".join(f"{code(name)}: {cell(text)}" for name, text in facts.mutants_built(doc.subject).items())
    tail = f"\n\nMutants for the model gate: {said}." if said else ""
    return "## Built\n\n" + grid(facts.built(builds)) + tail


def candidates(doc: Document) -> str:
    if not doc.entries:
        return ""
    note = "" if facts.costs_measured(doc) else f" {COST}"
    return f"## Candidates\n\n{facts.counts(doc)}{note}\n\n" + grid(facts.candidates(doc))


def environment(doc: Document) -> str:
    made = facts.environment(doc.subject) if doc.subject else None
    return "## Environment\n\n" + grid(made) if made else ""


def provenance(doc: Document) -> str:
    text = "## Provenance\n\n" + grid(facts.provenance(doc))
    builds = doc.subject.sound_builds if doc.subject else ()
    if builds:
        text += "\n\n" + details(f"{len(builds)} objects", grid(facts.objects(builds)))
    return text


def reproduce(doc: Document) -> str:
    text = facts.reproduce(doc).replace("`", "'")
    return f"## Reproduce\n\n```sh\n{text}\n```"


def logs(doc: Document) -> str:
    """What gates said to candidates that failed, whole up to a cap; the latest first dropped."""
    parts: list[str] = []
    for entry in doc.entries:
        failed = entry.verdict.failed
        if failed is not None and len(parts) < SHOWN_LOGS:
            title = (
                f"{entry.number}: <code>{entry.candidate.id[:12]}</code> {failed.gate} <code>{cell(failed.code)}</code>"
            )
            parts.append(details(title, fenced(failed.message)))
    return "## Logs\n\n" + "\n\n".join(parts) if parts else ""
