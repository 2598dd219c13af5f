"""Foreign text (compiler output, gate messages, other candidates) as quoted data in a prompt.

A quoted block opens and closes with a tag that carries an id which does not occur in the text, around a fence longer
than any in the text: no content can close its block early. Terminal codes, control, invisible and direction-changing
characters are removed, and the length is capped. Quoting marks text as data; that a model obeys the mark is not
promised, which is why nothing that a model writes has authority.
"""

import re
import unicodedata

from kgen.records import sha256_text

# CSI, OSC/DCS/PM/APC strings up to their terminator, then any other escape of two or three characters.
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs", "Cn"})
_KEPT = frozenset("\n\t")
_WALL = re.compile(r"`{33,}")  # longer than any fence; the block's own fence would be longer still, twice
_LABEL = re.compile(r"[^A-Za-z0-9 ._/=-]+")

CAPS = {  # characters of each kind of data that a prompt carries
    "message": 6_000,  # compiler messages are at most 1.3 KB with the default stack filter; chains of them more
    "source": 60_000,
    "facts": 4_000,
    "note": 8_000,
}


def strip_terminal(text: str) -> str:
    """Plain text: no terminal codes, LF line ends, no control, format, private or unassigned characters."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in _INVISIBLE)


def capped(text: str, limit: int) -> str:
    """About `limit` characters at most: two thirds from the start, one third from the end, and how many are missing."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[len(text) - tail :]}"


def quoted(text: object, label: str, kind: str = "message", language: str = "text") -> str:
    """A delimited block of data. `label` says what it is; `kind` names its cap in CAPS."""
    body = _WALL.sub("`" * 32, capped(strip_terminal(str(text)), CAPS[kind])).strip("\n")
    tag = _absent_id(body)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    label = " ".join(_LABEL.sub(" ", label).split())
    return f'<data id="{tag}" what="{label}">\n{fence}{language}\n{body}\n{fence}\n</data id="{tag}">'


def _absent_id(body: str) -> str:
    """A short id, determined by the text, that does not occur in it."""
    seed = body
    while True:
        seed = sha256_text(seed)
        if seed[:12] not in body:
            return seed[:12]
