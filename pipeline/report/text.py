"""Small pieces of Markdown. Text from compilers, models and candidates is data: it stays in its cell or its fence."""

import re
from collections.abc import Iterable, Sequence

from kgen.report.plain import Cell, Code, Figure, Mark, Pieces, Strong, Table, cut

CELL = 220  # characters of a message in a table
LOG = 3000  # characters of a log
CODE = 120
MARK = {"pass": "✅", "fail": "❌", "error": "⚠️", "skip": "⏭️"}  # by a gate's status
# what Markdown or HTML would act on; an underscore inside a word is none of it
LIVE = re.compile(r"[&<>|\\`*\[\]#@~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def cell(text: object, limit: int = CELL) -> str:
    """One line without live markup: no pipes, HTML, links, mentions or code fences of its own."""
    return _inert(cut(text, limit))


def _inert(text: str) -> str:
    return LIVE.sub(lambda m: NAMED.get(m[0], f"&#{ord(m[0])};"), text)


def set_in_line(pieces: Pieces) -> str:
    """A paragraph."""
    return "".join(
        code(p) if isinstance(p, Code) else f"**{_inert(p)}**" if isinstance(p, Strong) else _inert(p) for p in pieces
    )


def code(text: object) -> str:
    """Short inline code: names, hashes, commands. What is inside a code span is inert."""
    clean = " ".join(str(text).split()).replace("`", "'").replace("|", "/")[:CODE]
    return f"`{clean}`" if clean else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table; `right`: columns that are aligned to the right."""
    marks = ["---:" if i in right else "---" for i in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def grid(made: Table) -> str:
    """A table whose cells are plain text."""
    return table(made.head, [[_inline(c, made.limit) for c in row] for row in made.rows], made.right)


def _inline(content: Cell, limit: int) -> str:
    if isinstance(content, tuple):
        return " ".join(_inline(part, limit) for part in content)
    if isinstance(content, Figure):
        return content
    if isinstance(content, Mark):
        return f"{MARK[content.split()[0]]} {content}"
    return code(content) if isinstance(content, Code) else cell(content, limit)


def fenced(text: str, limit: int = LOG) -> str:
    """Foreign text in a fence longer than any that it holds; the middle is cut out beyond `limit` characters."""
    clean = "".join(c for c in text if c in "\n\t" or c.isprintable())
    if len(clean) > limit:
        half = limit // 2
        clean = f"{clean[:half]}\n… {len(clean) - 2 * half} characters cut …\n{clean[-half:]}"
    longest = max((len(run) for run in re.findall(r"`+", clean)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{clean}\n{fence}"


def details(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
