"""From an answer (of a model, an agent or a person) to one candidate source.

A malformed answer is a value, `FormatError`, whose message goes back to whoever answered. Covered: encoding, size,
exactly one Python block, prose inside the block, line ends. Not covered: whether the source is a good candidate; a
syntax error in real code, a missing `build` or a forbidden import are the compile gate's to find.
"""

import re
from dataclasses import dataclass

from kgen.gates.parsing import parse

MAX_ANSWER_BYTES = 2_000_000  # a long chain of thought around a file of the size below
MAX_SOURCE_BYTES = 256_000  # the largest kernel source seen in public repositories is about half of this
MAX_IN_A_ROW = 3  # unusable answers to one question before its asker gives up

_PYTHON = frozenset({"python", "py", "python3"})
_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<info>.*)")  # no second way to match: a long line costs no more
# A sentence: four words or more with nothing in it that Python would need on that line.
_PROSE = re.compile(r"^\W{0,3}[A-Za-z][\w'’-]*(?:,? [\w'’-]+){3,}[.:!?]?$")

HOW_TO_ANSWER = "Answer with exactly one fenced block that starts with ```python and holds the whole candidate file."


@dataclass(frozen=True)
class FormatError:
    """`code` is stable; `message` is for whoever wrote the answer."""

    code: str
    message: str


@dataclass(frozen=True)
class _Block:
    language: str
    text: str
    closed: bool


def extract(answer: str | bytes) -> str | FormatError:
    """The candidate source in a Markdown answer, or what is wrong with the answer."""
    text = _decoded(answer, MAX_ANSWER_BYTES)
    if isinstance(text, FormatError):
        return text
    found = _python_block(_blocks(text))
    return found if isinstance(found, FormatError) else source_file(found.text)


def source_file(content: str | bytes) -> str | FormatError:
    """A whole file that should be one candidate source: checked and brought to LF with one newline at the end."""
    text = _decoded(content, MAX_SOURCE_BYTES)
    if isinstance(text, FormatError):
        return text
    text = text.rstrip() + "\n"
    if not text.strip():
        return FormatError("answer.empty", f"The code is empty. {HOW_TO_ANSWER}")
    prose = _prose_line(text)
    if prose is not None:
        line, words = prose
        return FormatError("answer.prose", f"Line {line} of the code is prose, not Python: {words!r}. {HOW_TO_ANSWER}")
    return text


def _decoded(content: str | bytes, limit: int) -> str | FormatError:
    try:
        raw = content.encode("utf-8") if isinstance(content, str) else content
        if len(raw) > limit:
            return FormatError("answer.size", f"The answer has {len(raw)} bytes, the limit is {limit}.")
        text = raw.decode("utf-8")
    except UnicodeError:
        return FormatError("answer.encoding", "The answer is not valid UTF-8.")
    if "\0" in text:
        return FormatError("answer.encoding", "The answer holds NUL characters.")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks as CommonMark has them: a block ends at a fence of its own mark, at least as long, without info."""
    blocks: list[_Block] = []
    marks, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        fence = None if fence and "`" in fence["info"] else fence
        if not marks:
            if fence:
                words = fence["info"].split()
                marks, language, lines = fence["marks"], words[0].lower() if words else "", []
        elif fence and not fence["info"].strip() and fence["marks"].startswith(marks):
            blocks.append(_Block(language, "\n".join(lines), closed=True))
            marks = ""
        else:
            lines.append(line)
    if marks:
        blocks.append(_Block(language, "\n".join(lines), closed=False))
    return blocks


def _python_block(blocks: list[_Block]) -> _Block | FormatError:
    """The one block tagged as Python, else the one untagged block; other languages are ignored."""
    tagged = [b for b in blocks if b.language in _PYTHON]
    chosen = tagged or [b for b in blocks if not b.language]
    if not chosen:
        return FormatError("answer.no-code", f"There is no Python code block in the answer. {HOW_TO_ANSWER}")
    if len(chosen) > 1:
        return FormatError(
            "answer.blocks", f"There are {len(chosen)} Python code blocks in the answer. {HOW_TO_ANSWER}"
        )
    if not chosen[0].closed:
        return FormatError("answer.unclosed", f"The code block is not closed: the answer looks cut. {HOW_TO_ANSWER}")
    return chosen[0]


def _prose_line(text: str) -> tuple[int, str] | None:
    """(line, text) of a sentence at which Python's parser stops. The source is only parsed, never compiled or run."""
    try:
        parse(text)
    except SyntaxError as error:
        lines = text.split("\n")
        line = error.lineno or 0
        words = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return (line, words[:80]) if _PROSE.match(words) else None
    except (ValueError, RecursionError, MemoryError):  # what the parser raises on absurd nesting: the gate's to judge
        return None
    return None
