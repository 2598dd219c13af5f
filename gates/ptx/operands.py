"""The words of one instruction -> an Instruction record."""

from collections.abc import Callable

from kgen.gates.ptx.syntax import Address, Imm, Instruction, Not, Operand, Pair, Reg, Sym, Vector
from kgen.gates.ptx.tokens import PtxError, Token

Find = Callable[[str], str | None]  # a written name -> its unique name


class _Words:
    def __init__(self, given: list[Token], register: Find, label: Find) -> None:
        self._given, self._at, self._register, self._label = given, 0, register, label

    @property
    def line(self) -> int:
        return self._given[min(self._at, len(self._given) - 1)].line

    def peek(self) -> str:
        return self._given[self._at].text if self._at < len(self._given) else ""

    def next(self) -> Token:
        if self._at >= len(self._given):
            raise PtxError(self.line, "an operand is missing")
        self._at += 1
        return self._given[self._at - 1]

    def take(self, text: str) -> None:
        token = self.next()
        if token.text != text:
            raise PtxError(token.line, f"expected {text!r}, found {token.text[:40]!r}")

    def operands(self, stop: str = "", depth: int = 0) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while self.peek() != stop:
            found.append(self.operand(depth))
            if self.peek() == ",":
                self.next()
            elif self.peek() != stop:
                raise PtxError(self.line, f"{self.peek()[:40]!r} after an operand")
        return tuple(found)

    def operand(self, depth: int) -> Operand:
        if depth > 3:
            raise PtxError(self.line, "operands are nested too deep")
        first = self._single(depth)
        if self.peek() == "|":
            self.next()
            return Pair(first, self._single(depth))
        return first

    def _single(self, depth: int) -> Operand:
        token = self.next()
        if token.text == "{":
            inner = self.operands("}", depth + 1)
            self.take("}")
            return Vector(inner)
        if token.text == "[":
            return self._address(depth)
        if token.text == "!":
            return Not(self._reg(self.next()))
        if token.text == "-":
            value = self.next()
            if value.kind != "int":
                raise PtxError(token.line, f"-{value.text[:40]} is no number")
            return Imm(-value.value)
        base = self._word(token)
        if isinstance(base, Sym) and self.peek() == "+":  # a variable's address with an offset
            return Address(base, self._offset())
        return base

    def _word(self, token: Token) -> Reg | Sym | Imm:
        if token.kind == "int":
            return Imm(token.value)
        if token.kind == "float":
            return Imm(token.value, 4 if token.text[1] in "fF" else 8)
        if token.kind != "name":
            raise PtxError(token.line, f"{token.text[:40]!r} is no operand")
        if name := self._register(token.text):
            return Reg(name)
        return Sym(self._label(token.text) or token.text)

    def _reg(self, token: Token) -> Reg:
        found = self._word(token)
        if not isinstance(found, Reg):
            raise PtxError(token.line, f"{token.text[:40]!r} is no register")
        return found

    def _offset(self) -> int:
        """What follows a base: any number of `+n`, `-n`, `+-n`."""
        total = 0
        while self.peek() in ("+", "-"):
            sign = 1
            while self.peek() in ("+", "-"):
                sign = -sign if self.next().text == "-" else sign
            token = self.next()
            if token.kind != "int":
                raise PtxError(token.line, f"{token.text[:40]!r} is no offset")
            total += sign * token.value
        return total

    def _address(self, depth: int) -> Address:
        base = self._word(self.next())
        offset = self._offset()
        more: tuple[Operand, ...] = ()
        if self.peek() == ",":
            self.next()
            more = self.operands("]", depth + 1)
        self.take("]")
        return Address(base, offset, more)


def instruction(given: list[Token], register: Find, label: Find) -> Instruction:
    """Raises PtxError for operands that are none."""
    words = _Words(given, register, label)
    guard: Reg | Not | None = None
    text = _written(given)
    if words.peek() == "@":
        words.next()
        found = words.operand(0)
        if not isinstance(found, Reg | Not):
            raise PtxError(given[0].line, "a guard must be a predicate")
        guard = found
    head = words.next()
    if head.kind != "name" or not head.text[0].islower():
        raise PtxError(head.line, f"{head.text[:40]!r} is no instruction")
    opcode, *modifiers = head.text.split(".")
    return Instruction(opcode, tuple(modifiers), words.operands(), guard, head.line, text)


def _written(given: list[Token]) -> str:
    out = ""
    for token in given[:300]:  # what is shown is cut there: a token has a character or more
        glue = token.text in ",]})|+-" or out.endswith(("[", "{", "(", "@", "!", "|", "+", "-")) or not out
        out += token.text if glue else f" {token.text}"
    return out[:300]
