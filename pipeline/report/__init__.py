"""Reports for people and programs: one document read from a run folder, written as Markdown or JSON."""

from kgen.report.document import Document, Entry, read
from kgen.report.json_form import as_json
from kgen.report.markdown import MAX_BYTES, markdown

__all__ = ["MAX_BYTES", "Document", "Entry", "as_json", "markdown", "read"]
