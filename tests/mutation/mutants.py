"""Mutants of one source file: which small changes there are, and the code object with one of them made.

    mutants(module, source)      all of them, in order of appearance
    mutated(source, mutant)      the module's syntax tree with this change

Changed are comparisons, `and`/`or`/`not`, numbers and booleans (`strict=` and defaults too), arithmetic, `min`/`max`,
`any`/`all`, conditions and filters, and returned values; `raise`, `continue`, `break` and statements that only call or
add are dropped. Not changed: texts (codes, messages, what stands inside f-strings), annotations, decorators, asserts.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

Change = Callable[[ast.AST], ast.AST]

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
CONTEXT = 40  # characters of a statement that a mutant's name shows on either side of its change
SKIPPED = (ast.JoinedStr, ast.Assert, ast.expr_context)


@dataclass(frozen=True)
class Mutant:
    """One change. `before` and `after` show it with some of its statement; with module and function they name it."""

    module: str
    function: str  # the outermost function that holds it; "" for what runs at import
    before: str
    after: str
    line: int
    site: int  # number of the changed node
    choice: int  # which of the node's changes

    @property
    def key(self) -> str:
        return f"{self.module}:{self.function}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class _Site:
    """A node, the slot of its parent that holds it, its statement, and the outermost function around it."""

    node: ast.AST
    parent: ast.AST
    slot: str
    index: int | None
    statement: ast.stmt
    function: str


def mutants(module: str, source: str) -> tuple[Mutant, ...]:
    """Those whose text differs from the original and from each other's; equal names get a number."""
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    sites = list(_sites(ast.parse(source)))
    for number, site in enumerate(sites):
        was = _text(site.statement)
        for choice, change in enumerate(_changes(site)):
            made = _Made(site, change)
            with made:
                became = _text(made.new if isinstance(made.new, ast.stmt) else site.statement)
            if became == was:
                continue
            before, after = _shortened(was, became)
            mutant = Mutant(module, site.function, before, after, site.statement.lineno, number, choice)
            seen[mutant.key] += 1
            if (count := seen[mutant.key]) > 1:
                mutant = replace(mutant, after=f"{after} #{count}")
            found.append(mutant)
    return tuple(found)


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The tree with this mutant's change in it."""
    tree = ast.parse(source)
    site = list(_sites(tree))[mutant.site]
    _Made(site, list(_changes(site))[mutant.choice]).__enter__()
    return ast.fix_missing_locations(tree)


class _Made:
    """A change put into the tree, and taken back at the end of a `with` block."""

    def __init__(self, site: _Site, change: Change) -> None:
        self.site, self.new = site, ast.copy_location(change(site.node), site.node)

    def __enter__(self) -> None:
        self._put(self.new)

    def __exit__(self, *_: object) -> None:
        self._put(self.site.node)

    def _put(self, node: ast.AST) -> None:
        held = getattr(self.site.parent, self.site.slot)
        if self.site.index is None:
            setattr(self.site.parent, self.site.slot, node)
        else:
            held[self.site.index] = node


def _sites(tree: ast.Module) -> Iterator[_Site]:
    def walk(node: ast.AST, statement: ast.stmt | None, function: str, path: tuple[str, ...]) -> Iterator[_Site]:
        for slot, value in ast.iter_fields(node):
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, SKIPPED) or _inert(node, slot, child):
                    continue
                own = child if isinstance(child, ast.stmt) else statement
                inner, names = function, path
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    names = (*path, child.name)
                    inner = function or (".".join(names) if isinstance(child, ast.FunctionDef) else "")
                here = function if isinstance(child, ast.FunctionDef | ast.ClassDef) else inner
                if own is not None:
                    yield _Site(child, node, slot, index, own, here)
                yield from walk(child, own, "" if _at_import(node, slot) else inner, names)

    yield from walk(tree, None, "", ())


def _inert(parent: ast.AST, slot: str, child: ast.AST) -> bool:
    """Annotations, decorators, docstrings, and what a raise says."""
    if slot in ("annotation", "returns", "decorator_list", "bases") or isinstance(parent, ast.Raise):
        return True
    return isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)


def _at_import(node: ast.AST, slot: str) -> bool:
    return isinstance(node, ast.FunctionDef) and slot == "args"


def _changes(site: _Site) -> Iterator[Change]:
    """New nodes for a site's node; none of them changes the node itself."""
    node = site.node
    if isinstance(node, ast.Compare):
        yield from _compared(node)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield lambda _: ast.BoolOp(other, node.values)
        for index in range(len(node.values)):
            kept = node.values[:index] + node.values[index + 1 :]
            yield lambda _, kept=kept: ast.BoolOp(node.op, kept) if len(kept) > 1 else kept[0]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield lambda _: node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(site, node)
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        yield lambda _: ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLED:
        yield lambda _: ast.Call(ast.Name(CALLED[node.func.id], ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.comprehension):
        for index in range(len(node.ifs)):
            kept = node.ifs[:index] + node.ifs[index + 1 :]
            yield lambda _, kept=kept: ast.comprehension(node.target, node.iter, kept, node.is_async)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)
    if site.slot == "test" and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield lambda _: ast.UnaryOp(ast.Not(), node)


def _compared(node: ast.Compare) -> Iterator[Change]:
    for index, op in enumerate(node.ops):
        for other in COMPARED[type(op)]:
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield lambda _, ops=ops: ast.Compare(node.left, ops, node.comparators)


def _constants(site: _Site, node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield lambda _: ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield lambda _: ast.Constant(node.value + 1)
        yield lambda _: ast.Constant(node.value - 1)
    elif isinstance(node.value, str) and site.slot in ("defaults", "kw_defaults"):
        yield lambda _: ast.Constant(f"{node.value}x")


def _statements(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Return) and node.value is not None:
        if not isinstance(node.value, ast.Constant):
            yield lambda _: ast.Return(ast.Constant(None))
        elif isinstance(node.value.value, str):
            yield lambda _: ast.Return(ast.Constant("" if node.value.value else "mutant"))
    elif isinstance(node, ast.AugAssign) and type(node.op) in COMPUTED:
        yield lambda _: ast.AugAssign(node.target, COMPUTED[type(node.op)](), node.value)
        yield lambda _: ast.Pass()
    elif isinstance(node, ast.Raise | ast.Continue | ast.Break) or _only_does(node):
        yield lambda _: ast.Pass()
    elif isinstance(node, ast.If) and not isinstance(node.body[0], ast.Raise | ast.Continue | ast.Break):
        yield lambda _: ast.If(ast.Constant(False), node.body, node.orelse)


def _only_does(node: ast.stmt) -> bool:
    """A call for its effect, or a store into something that exists already."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)


def _text(statement: ast.stmt) -> str:
    """A statement in one line; of a compound one its head."""
    lines = ast.unparse(statement).splitlines()
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.While | ast.With | ast.Try):
        lines = [line for line in lines if not line.startswith((" ", "@"))][:1]
    return " ".join(line.strip() for line in lines)


def _shortened(was: str, became: str) -> tuple[str, str]:
    """Both texts without what they share at the ends, but for CONTEXT characters."""
    first = next((i for i, (a, b) in enumerate(zip(was, became, strict=False)) if a != b), min(len(was), len(became)))
    shared = min(len(was), len(became)) - first
    last = next((i for i in range(shared) if was[-1 - i] != became[-1 - i]), shared)
    start, end = max(0, first - CONTEXT), max(0, last - CONTEXT)
    return was[start : len(was) - end], became[start : len(became) - end]
