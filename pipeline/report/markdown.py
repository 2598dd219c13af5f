"""The Markdown that goes into a pull request: verdict first; never longer than a comment may be."""

from collections.abc import Callable, Mapping

from kgen.report import background, sections
from kgen.report.document import Document
from kgen.report.lineage import lineage

Section = Callable[[Document], str]
MAX_BYTES = 64 << 10  # of a comment on GitHub
MARKER = "<!-- kgen-report op={op} run={run} -->"  # lets a workflow find and update its one comment
# In the order shown. Where the page does not fit, sections are left out in the order of LEFT_OUT_FIRST.
ORDER = (
    sections.headline,
    sections.gates,
    sections.found,
    sections.numeric,
    sections.model,
    sections.speed,
    background.built,
    background.candidates,
    lineage,
    background.environment,
    background.provenance,
    background.reproduce,
    background.logs,
)
LEFT_OUT_FIRST = (
    lineage,
    background.logs,
    background.candidates,
    background.provenance,
    background.built,
    sections.model,
)
LEFT_OUT = "_Left out, because a comment holds 64 KiB: {names}. All of it: `kgen report {run} --format json`._"


def markdown(doc: Document, limit: int = MAX_BYTES) -> str:
    """At most `limit` bytes of UTF-8."""
    texts: dict[Section, str] = {section: section(doc) for section in ORDER}
    marker = MARKER.format(op=doc.op.name, run=doc.run.id)
    dropped: list[str] = []
    for section in LEFT_OUT_FIRST:
        if _bytes(_joined(doc, marker, texts, dropped)) <= limit:
            break
        if texts[section]:
            dropped.append(section.__name__)
            texts[section] = ""
    return _cut(_joined(doc, marker, texts, dropped), limit, doc)


def _joined(doc: Document, marker: str, texts: Mapping[Section, str], dropped: list[str]) -> str:
    note = LEFT_OUT.format(names=", ".join(dropped), run=doc.run.id) if dropped else ""
    return "\n\n".join(part for part in (marker, *texts.values(), note) if part) + "\n"


def _bytes(text: str) -> int:
    return len(text.encode("utf-8"))


def _cut(text: str, limit: int, doc: Document) -> str:
    """The last resort: whole lines up to the limit, and the pointer."""
    if _bytes(text) <= limit:
        return text
    note = "\n\n" + LEFT_OUT.format(names="the rest", run=doc.run.id) + "\n"
    kept, size = [], _bytes(note)
    for line in text.splitlines():
        size += _bytes(line) + 1
        if size > limit:
            break
        kept.append(line)
    opened = sum(line.startswith("<details>") for line in kept) - sum(line == "</details>" for line in kept)
    if opened > 0:  # cut before the block that would stay open
        last = max(i for i, line in enumerate(kept) if line.startswith("<details>"))
        kept = kept[:last]
    return "\n".join(kept) + note
