"""Words of PTX text, with their lines. Comments are dropped."""

import re
from dataclasses import dataclass

MAX_CHARACTERS = 16 << 20
MAX_WORD = 4096  # characters: a kernel's name spells out the types of all its tensors
TOKEN = re.compile(
    r"(?P<float>0[fF][0-9a-fA-F]{8}(?![0-9a-zA-Z])|0[dD][0-9a-fA-F]{16}(?![0-9a-zA-Z]))"
    r"|(?P<int>0[xX][0-9a-fA-F]{1,32}U?|0[bB][01]{1,64}U?|[0-9]{1,20}U?(?![\w.]))"
    r"|(?P<name>(?:[\w$.%]|::)+)"
    r"|(?P<string>\"[^\"\n]*\")"
    r"|(?P<mark>[{}()\[\];:,<>+\-=@!|*])"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)  # one without an end is found once, not at each `/*`
BLANK = re.compile(r"[ \t\r\f\v]+")


class PtxError(ValueError):
    """Text that is no PTX, or a launch that does not fit it: one line, with the PTX line where there is one."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"PTX line {line}: {message}" if line else message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # "float", "int", "name", "string", "mark", "end"
    text: str
    line: int
    value: int = 0  # bits of a number


def tokens(text: str) -> list[Token]:
    """All words, then one of kind "end". Raises PtxError for what is no PTX."""
    if len(text) > MAX_CHARACTERS:
        raise PtxError(0, f"PTX of {len(text)} characters is too long; at most {MAX_CHARACTERS}")
    text = COMMENT.sub(_lines_of, text)
    found: list[Token] = []
    for number, line in enumerate(text.split("\n"), 1):
        _words(line, number, found)
    found.append(Token("end", "", len(text)))
    return found


def _lines_of(comment: re.Match[str]) -> str:
    """The line ends of a comment, so that lines keep their numbers."""
    said = comment[0]
    if said.startswith("/*") and (len(said) < 4 or not said.endswith("*/")):
        raise PtxError(comment.string.count("\n", 0, comment.start()) + 1, "a comment without an end")
    return "\n" * said.count("\n")


def _words(line: str, number: int, found: list[Token]) -> None:
    at = 0
    while at < len(line):
        if blank := BLANK.match(line, at):
            at = blank.end()
            continue
        word = TOKEN.match(line, at)
        if word is None:
            raise PtxError(number, f"{line[at : at + 20]!r} is no PTX")
        if word.end() - at > MAX_WORD:
            raise PtxError(number, f"a word of {word.end() - at} characters is too long")
        kind = word.lastgroup or ""
        found.append(Token(kind, word[0], number, _value(kind, word[0])))
        at = word.end()


def _value(kind: str, text: str) -> int:
    if kind == "float":
        return int(text[2:], 16)
    if kind != "int":
        return 0
    digits = text.rstrip("U")
    octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    return int(digits, 8) if octal and not set(digits) & set("89") else int(digits, 10 if digits.isdigit() else 0)
