"""PTX text -> frozen records: module variables, entries, instructions with their operands. No meaning is given here.

Names in the scopes of inline assembly (`{ .reg .pred P1; L: ... }`) are made unique, so that an entry has one flat
list of instructions. Not covered: `.func` (a call is an instruction that nothing knows), sections of debug data.
"""

import functools
import re
from dataclasses import dataclass, field

from kgen.gates.ptx.operands import instruction
from kgen.gates.ptx.syntax import Entry, Module, Param, Variable
from kgen.gates.ptx.tokens import PtxError, Token, tokens

WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
TYPE = re.compile(r"\.(?:b|u|s|f)(8|16|32|64|128)$")
SPACES = (".global", ".shared", ".const", ".local")
LINKAGE = (".visible", ".extern", ".weak", ".common")
MAX_REGISTERS = 200_000
MAX_CHARACTERS = 8 << 20  # of the names of an entry's registers, of which `%r<9>` makes many
MAX_SIZE = 1 << 40  # bytes of a variable; a device has fewer
MAX_DEPTH = 50
MAX_PARAMS, MAX_ALIGN = 32764, 1 << 16  # bytes


@dataclass
class _Scope:
    number: int
    parent: "_Scope | None"
    depth: int = 0
    registers: dict[str, str] = field(default_factory=dict)  # written name -> unique name
    labels: dict[str, str] = field(default_factory=dict)

    def register(self, name: str) -> str | None:
        """The unique name of a register that is visible here."""
        return self.registers.get(name) or (self.parent.register(name) if self.parent else None)

    def label(self, name: str) -> str | None:
        return self.labels.get(name) or (self.parent.label(name) if self.parent else None)


@dataclass
class _Body:
    """What the statements of an entry gather."""

    scope: _Scope
    registers: dict[str, str] = field(default_factory=dict)
    declared: int = 0  # registers, each time that they are
    characters: int = 0  # of their names
    variables: list[Variable] = field(default_factory=list)
    pending: list[tuple[list[Token], _Scope]] = field(default_factory=list)  # instructions before names are known
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[list[str], _Scope]] = field(default_factory=dict)  # names of labels before they are known
    scopes: int = 0


@functools.lru_cache(maxsize=4)
def parse(text: str) -> Module:
    """Raises PtxError (one line, with the PTX line) for text that is no PTX or that is too large.

    The last few modules are kept: a gate calls the kernels of one text many times.
    """
    return _Parser(tokens(text)).module()


class _Parser:
    def __init__(self, given: list[Token]) -> None:
        self._tokens, self._at = given, 0

    # -- tokens

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind == "end":
            raise PtxError(token.line, "the text ends in the middle of a statement")
        self._at += 1
        return token

    def _take(self, text: str) -> Token:
        token = self._next()
        if token.text != text:
            raise PtxError(token.line, f"expected {text!r}, found {token.text[:40]!r}")
        return token

    def _is(self, text: str) -> bool:
        return self._peek().text == text

    def _until(self, *stops: str) -> list[Token]:
        found = []
        while self._peek().text not in stops:
            found.append(self._next())
        return found

    def _number(self) -> int:
        sign = -1 if self._is("-") else 1
        if sign < 0:
            self._next()
        token = self._next()
        if token.kind != "int":
            raise PtxError(token.line, f"expected a number, found {token.text[:40]!r}")
        return sign * token.value

    # -- module

    def module(self) -> Module:
        version, target, variables, entries = "", "", [], {}
        while self._peek().kind != "end":
            token = self._next()
            if token.text == ".version":
                version = "".join(t.text for t in self._line(token))
            elif token.text == ".target":
                target = "".join(t.text for t in self._line(token))
            elif token.text in (".address_size", ".file", ".pragma", ".alias"):
                self._line(token)
            elif token.text in LINKAGE:
                continue
            elif token.text in SPACES:
                variables.append(self._variable(token.text[1:]))
            elif token.text == ".entry":
                entry = self._entry()
                entries[entry.name] = entry
            elif token.text in (".func", ".section"):
                self._skip_block()
            else:
                raise PtxError(token.line, f"{token.text[:40]!r} is no directive of a module")
        if not version or not entries:
            raise PtxError(0, "no PTX: it needs .version and an .entry")
        return Module(version, target, tuple(variables), entries)

    def _line(self, first: Token) -> list[Token]:
        """The tokens on the rest of a line (a `;` at its end is dropped)."""
        found = []
        while self._peek().kind != "end" and self._peek().line == first.line:
            found.append(self._next())
        return [t for t in found if t.text != ";"]

    def _skip_block(self) -> None:
        self._until("{", ";")
        if self._next().text == ";":
            return
        depth = 1
        while depth:
            text = self._next().text
            depth += (text == "{") - (text == "}")

    def _variable(self, space: str) -> Variable:
        align, width = 1, 0
        while self._peek().text.startswith("."):
            token = self._next()
            if token.text == ".align":
                align = self._number()
            elif found := TYPE.match(token.text):
                width = WIDTHS[found[1]]
            elif token.text not in (*LINKAGE, ".v2", ".v4"):
                raise PtxError(token.line, f"a variable of type {token.text} is not known")
        name = self._next()
        if not width:
            raise PtxError(name.line, f"variable {name.text} has no type")
        count, data = 1, b""
        while self._is("["):
            self._next()
            count *= 0 if self._is("]") else self._number()
            if abs(count) > MAX_SIZE:
                raise PtxError(name.line, f"variable {name.text[:60]} is too large")
            self._take("]")
        if self._is("="):
            self._next()
            data = self._initial(width)
        self._take(";")
        if count < 0 or len(data) > count * width or align > MAX_ALIGN:
            raise PtxError(name.line, f"variable {name.text} has a size, alignment or initial value that cannot be")
        return Variable(name.text, space, max(align, width), count * width, data)

    def _initial(self, width: int) -> bytes:
        parts = self._until(";")
        out, sign = bytearray(), 1
        for token in parts:
            if token.text == "-":
                sign = -1
            elif token.kind in ("int", "float"):
                out += ((sign * token.value) % (1 << (8 * width))).to_bytes(width, "little")
                sign = 1
            elif token.text not in ("{", "}", ","):
                raise PtxError(token.line, f"initial value {token.text[:40]!r} is not known")
        return bytes(out)

    # -- entries

    def _entry(self) -> Entry:
        name = self._next()
        params = self._params() if self._is("(") else []
        limits: dict[str, tuple[int, ...]] = {}
        while not self._is("{"):
            token = self._next()
            if not token.text.startswith("."):
                raise PtxError(token.line, f"{token.text[:40]!r} is no directive of an entry")
            numbers = [t.value for t in self._line(token) if t.kind == "int"]
            limits[token.text[1:]] = tuple(numbers)
        self._take("{")
        body = _Body(_Scope(0, None))
        self._statements(body)
        return _finish(name.text, params, limits, body)

    def _params(self) -> list[Param]:
        found: list[Param] = []
        self._take("(")
        while not self._is(")"):
            self._take(".param")
            align, width, count = 1, 0, 1
            while self._peek().text.startswith("."):
                token = self._next()
                if token.text == ".align":
                    align = self._number()
                elif match := TYPE.match(token.text):
                    width = WIDTHS[match[1]]
            name = self._next()
            if self._is("["):
                self._next()
                count = self._number()
                self._take("]")
            if not width or not 0 < count * width <= MAX_PARAMS or align > MAX_ALIGN:
                raise PtxError(name.line, f"parameter {name.text} has no type, or a size or alignment that cannot be")
            found.append(Param(name.text, max(align, width), width * count))
            if self._is(","):
                self._next()
        self._take(")")
        return found

    def _statements(self, body: _Body) -> None:
        """To the closing brace of the entry. Nested scopes are a stack: their depth costs no recursion."""
        scope = body.scope
        while True:
            token = self._next()
            if token.text == "}":
                if scope.parent is None:
                    return
                scope = scope.parent
            elif token.text == "{":
                body.scopes += 1
                depth = scope.depth + 1
                if depth > MAX_DEPTH:
                    raise PtxError(token.line, "scopes are nested too deep")
                scope = _Scope(body.scopes, scope, depth)
            elif token.text == ".reg":
                self._registers(body, scope)
            elif token.text in SPACES:
                body.variables.append(self._variable(token.text[1:]))
            elif token.text in (".loc", ".file", ".pragma"):
                self._line(token)
            elif token.text == ".param":  # of a call, which is an instruction that nothing knows
                self._until(";")
            elif token.text.startswith("."):
                raise PtxError(token.line, f"directive {token.text} is not known")
            elif token.kind == "name" and self._is(":"):
                self._next()
                unique = _unique(token.text, scope)
                if token.text in scope.labels:
                    raise PtxError(token.line, f"label {token.text} is there twice")
                scope.labels[token.text] = unique
                body.labels[unique] = len(body.pending)
                if self._is(".branchtargets"):
                    self._next()
                    body.tables[unique] = ([t.text for t in self._until(";") if t.text != ","], scope)
                    self._take(";")
            elif token.text != ";":
                body.pending.append(([token, *self._until(";")], scope))
                self._take(";")

    def _registers(self, body: _Body, scope: _Scope) -> None:
        kind = self._next().text[1:]
        kind = kind if kind == "pred" else "b" + kind.lstrip("busf")
        if kind not in ("pred", "b8", "b16", "b32", "b64", "b128"):
            raise PtxError(self._peek().line, f"registers of type .{kind} are not known")
        while True:
            name, names = self._next(), []
            if self._is("<"):
                self._next()
                count = self._number()
                if count > MAX_REGISTERS:
                    raise PtxError(name.line, f"{count} registers are too many")
                self._take(">")
                self._spend(body, name, count)
                names = [f"{name.text}{i}" for i in range(count)]
            else:
                self._spend(body, name, 1)
                names = [name.text]
            for written in names:
                unique = _unique(written, scope)
                scope.registers[written] = unique
                body.registers[unique] = kind
            if self._next().text == ";":
                return

    @staticmethod
    def _spend(body: _Body, name: Token, count: int) -> None:
        """Registers that are declared again count again: a text may not make more than it has a right to."""
        body.declared += max(count, 0)
        body.characters += max(count, 0) * len(name.text)
        if body.declared > MAX_REGISTERS or body.characters > MAX_CHARACTERS:
            raise PtxError(name.line, "too many registers")


def _unique(name: str, scope: _Scope) -> str:
    return f"{name}@{scope.number}" if scope.number else name


def _finish(name: str, params: list[Param], limits: dict[str, tuple[int, ...]], body: _Body) -> Entry:
    made = tuple(instruction(given, scope.register, scope.label) for given, scope in body.pending)
    tables = {n: tuple(s.label(one) or one for one in given) for n, (given, s) in body.tables.items()}
    return Entry(name, tuple(params), body.registers, tuple(body.variables), made, body.labels, limits, tables)
