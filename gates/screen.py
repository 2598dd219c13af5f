"""Static rules for a candidate's source, over its syntax tree: comments and strings may say what they like.

A screen, not a proof: it gives fast, readable refusals and closes the obvious doors. What a candidate could still do
is bounded by the sandbox, and what it leaves is audited. `screen` returns every finding with its line.
"""

import ast
import functools
import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kgen.gates.parsing import UNPARSABLE, Looked, children
from kgen.gates.skeleton import once

# Characters that show another program than the one that is parsed: they turn the direction of text, or end a line for
# some readers of it (the compiler reads a function's lines again, by their numbers) and not for Python.
HIDING = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]")
MAX_BYTES = 128 << 10
MAX_MESSAGE = 400  # characters: a name or a line of a source may be as long as the source
MAX_DEPTH = 200  # of nested expressions: deeper trees exhaust the compiler's stack
# Looked for before parsing: Python's parser takes memory by the square of the length of an imported dotted name.
CHAIN = re.compile(rf"\w(?:[\s\\]*+\.[\s\\]*+\w++){{{MAX_DEPTH}}}")

DRIVER = "cuda.bindings.driver"
# module -> names that may be used of it; None: any name that is not itself forbidden
ALLOWED: dict[str, tuple[str, ...] | None] = {
    "cutlass": None,
    DRIVER: ("CUstream",),
    "math": tuple(name for name in dir(math) if not name.startswith("_")),
    "functools": tuple(name for name in functools.__all__ if name != "update_wrapper"),  # it sets any attribute
    "typing": tuple(typing.__all__),  # `typing.sys` is there too
}
ALLOWED_PARENTS = {"cuda.bindings": ("driver",)}  # `from cuda.bindings import driver`

# Builtins that reach the interpreter, the file system or another object's insides
FORBIDDEN_NAMES = frozenset(
    {
        "eval",
        "exec",
        "compile",
        "open",
        "input",
        "breakpoint",
        "globals",
        "locals",
        "vars",
        "setattr",
        "delattr",
        "help",
        "exit",
        "quit",
        "memoryview",
        "object",
    }
)
# Modules that are reachable as attributes of allowed modules, with or without underscores round them (`_os`,
# `_dis_module`): they lead to files, processes, the clock, the machine or the interpreter. Those that only compute
# (`re`, `hashlib`, ...) are let through; a test walks the installed compiler.
MODULES = frozenset(
    [
        "argparse", "atexit", "builtins", "ctypes", "cuda_driver", "cuda_runtime", "cudart", "dataclasses", "gc",
        "glob", "importlib", "inspect", "io", "linecache", "logging", "multiprocessing", "np", "numpy", "nvrtc",
        "operator", "os", "pathlib", "pickle", "platform", "random", "shlex", "shutil", "signal", "site", "socket",
        "subprocess", "sys", "tempfile", "threading", "time", "torch", "traceback", "uuid",
    ]
)  # fmt: skip
# Functions, classes and other names that are reachable in the same way
FORBIDDEN_ATTRIBUTES = MODULES | frozenset(
    [
        "runtime_library", "load_module", "compile", "from_dlpack", "get_type_hints", "ForwardRef",
        "evaluate_forward_ref", "export_to_c", "dump_to_object", "f_globals", "f_locals", "f_back", "f_builtins",
        "gi_frame", "cr_frame", "tb_frame", "func_globals", "eval", "exec", "open", "system", "popen", "environ",
        "getenv", "attrgetter", "methodcaller", "mro", "bltns", "CodeType", "FunctionType", "ModuleType", "Path",
        "ThreadPoolExecutor", "getmembers", "cache_helpers", "env_manager", "get_bool_env_var", "get_int_env_var",
        "get_str_env_var",
    ]
)  # fmt: skip
ASKING = ("getattr", "hasattr")  # functions that take the name of an attribute as a text
FORMATS = ("format", "format_map")  # of a text
# Functions of the CUDA driver and runtime, which the compiler's own modules import under several names
DRIVER_CALL = re.compile(r"cu(da)?[A-Z]\w*")
# One statement of inline PTX: a declaration of registers, a label, or an instruction with its types; no other assembler
# puts a point into its mnemonics.
PTX_STATEMENT = re.compile(r"\.reg\b.*|[$%]?\w+:|(@!?[$%]?\w+\s+)?([a-z]\w*(\.[\w:]+)+.*|ret|exit|trap)", re.DOTALL)
FORBIDDEN_MODULES = frozenset({"cutlass.torch", "cutlass.jax", "cutlass.base_dsl.jit_executor"})
ALLOWED_DUNDERS = frozenset({"__init__", "__call__", "__name__", "__post_init__", "__doc__"})


@dataclass(frozen=True)
class Finding:
    """`code` is stable; `line` counts from 1, 0: the whole file."""

    code: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


def screen(source: str) -> list[Finding]:
    """Findings in file order; empty: the source may be built."""
    return [replace(f, message=f.message[:MAX_MESSAGE]) for f in _findings(source)]


def _findings(source: str) -> list[Finding]:
    text = _text(source)
    if text:
        return text
    try:
        return once(_of_nodes, source, _of_nodes)
    except SyntaxError as error:
        return [Finding("compile.syntax", error.lineno or 0, f"{error.msg}: {(error.text or '').strip()}")]
    except UNPARSABLE as error:
        return [Finding("compile.syntax", 0, str(error) or type(error).__name__)]


def _of_nodes(seen: Looked) -> list[Finding]:
    """By no value of a literal at the top level: sources that differ in these alone are looked through once."""
    if _too_deep(seen.levels):
        return [Finding("screen.size", 0, f"expressions nest deeper than {MAX_DEPTH}")]
    modules = _imported([*seen.kinds.get(ast.Import, ()), *seen.kinds.get(ast.ImportFrom, ())])
    names = {node.id for node in seen.kinds.get(ast.Name, ())}
    by_kind, other = PLAIN if names.isdisjoint(ASKING) else ASKED
    bad = {name for name in names if name in FORBIDDEN_NAMES or _dunder(name)}  # no rule finds anything in other names
    nodes = [n for level in seen.levels for n in level if not isinstance(n, ast.Name) or n.id in bad]
    found = [f for node in nodes for rule in by_kind.get(node.__class__, other) for f in rule(node, modules)]
    return sorted(found, key=lambda f: (f.line, f.code))


def _text(source: str) -> list[Finding]:
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError:
        return [Finding("screen.encoding", 0, "the source is not valid UTF-8")]
    if size > MAX_BYTES:
        return [Finding("screen.size", 0, f"{size} bytes, allowed are {MAX_BYTES}")]
    if chain := CHAIN.search(source):
        line = source.count("\n", 0, chain.start()) + 1
        return [Finding("screen.size", line, f"a name of more than {MAX_DEPTH} parts")]
    if "\r" in source or "\0" in source or source.startswith("\ufeff"):
        return [Finding("screen.encoding", 0, "carriage returns, null bytes and byte-order marks are not allowed")]
    if hit := HIDING.search(source):
        line, said = source.count("\n", 0, hit.start()) + 1, f"U+{ord(hit[0]):04X} hides what a line does"
        return [Finding("screen.encoding", line, f"{said}: it turns the text, or ends a line for some readers only")]
    return []


def _too_deep(levels: Sequence[Sequence[ast.AST]]) -> bool:
    """A context or an operator is a level too, though `levels` need not have it."""
    return len(levels) > MAX_DEPTH or (
        len(levels) == MAX_DEPTH and any(True for node in levels[-1] for _ in children(node))
    )


def _imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Local name -> module, for every name that an import binds to a module."""
    out = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                out[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                out[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return out


def _allowed_module(name: str) -> bool:
    if name in FORBIDDEN_MODULES or any(_leads_out(part) for part in name.split(".")):
        return False
    return name in ALLOWED or name.startswith("cutlass.")


def _imports(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if not _allowed_module(alias.name):
                yield _import(node, alias.name)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        for alias in node.names:
            full = f"{module}.{alias.name}"
            names = ALLOWED_PARENTS.get(module, ALLOWED.get(module))
            if module in ALLOWED_PARENTS:
                fine = alias.name in ALLOWED_PARENTS[module]
            else:
                fine = _allowed_module(module) and (names is None or alias.name in names)
            bad = alias.name == "*" or _leads_out(alias.name) or full in FORBIDDEN_MODULES or node.level
            if bad or not fine:
                yield _import(node, full)


def _import(node: ast.stmt, name: str) -> Finding:
    allowed = ", ".join(ALLOWED)
    return Finding("screen.import", node.lineno, f"import of {name} is not allowed; allowed: {allowed}")


def _names(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    if not isinstance(node, ast.Name):
        return
    if node.id in FORBIDDEN_NAMES:
        yield Finding("screen.name", node.lineno, f"{node.id} is not allowed")
    elif _dunder(node.id):
        yield Finding("screen.dunder", node.lineno, f"{node.id} is not allowed")


def _attributes(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    if not isinstance(node, ast.Attribute):
        return
    if _dunder(node.attr):
        yield Finding("screen.dunder", node.lineno, f"attribute {node.attr} is not allowed")
    elif _leads_out(node.attr):
        yield Finding("screen.name", node.lineno, f"attribute {node.attr} is not allowed")
    elif node.attr not in (names := ALLOWED.get(module := _dotted(node.value, modules)) or (node.attr,)):
        code = "screen.driver" if module == DRIVER else "screen.name"
        known = ": only CUstream may be used" if len(names) == 1 else ""
        yield Finding(code, node.lineno, f"{module}.{node.attr} is not allowed{known}")
    elif DRIVER_CALL.fullmatch(node.attr):
        yield Finding("screen.driver", node.lineno, f"{node.attr} is not allowed: a kernel needs no driver")
    if not isinstance(node.ctx, ast.Load) and (root := _root(node)) in modules:
        yield Finding("screen.patch", node.lineno, f"assigning to an attribute of the imported {root} is not allowed")


def _getattr(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    """`getattr(x, "plain_name")` only: as a value, or with a computed name, it goes round the other rules."""
    for child in children(node):
        if not (isinstance(child, ast.Name) and child.id in ASKING):
            continue
        call = node if isinstance(node, ast.Call) and node.func is child else None
        name = call.args[1].value if call and len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else None
        if not isinstance(name, str) or _dunder(name) or _leads_out(name) or name in FORMATS:
            yield Finding("screen.getattr", child.lineno, f"{child.id} needs a plain, constant attribute name")


def _formats(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    """`"{0.__globals__[os]}".format(f)` reads attributes by names that only the text holds."""
    if isinstance(node, ast.Attribute) and node.attr in FORMATS:
        text = node.value.value if isinstance(node.value, ast.Constant) else None
        if not isinstance(text, str) or node.attr == "format_map" or re.search(r"\{[^}:!]*[.\[]", text):
            said = f"{node.attr} needs a constant text whose fields read no attributes"
            yield Finding("screen.getattr", node.lineno, said)


def _assembly(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    """Inline assembly is PTX, written out where it is used: in a host function it would be the host's machine code."""
    if isinstance(node, ast.Attribute) and node.attr == "InlineAsmOp":
        yield Finding("screen.name", node.lineno, "InlineAsmOp is not allowed: inline_asm is")
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    if name == "inline_asm":
        given = [k.value for k in node.keywords if k.arg == "asm_string"] or node.args[2:3]
        text = _written(given[0]) if given else None
        if text is None or not all(PTX_STATEMENT.fullmatch(part) for part in _statements(text)):
            said = "inline_asm needs PTX instructions, with their types, as a text in place"
            yield Finding("screen.name", node.lineno, said)


def _written(node: ast.expr) -> str | None:
    """A text that stands in the source; values within it as `x`. None: it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "x" for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _written(node.left), _written(node.right)
        return None if left is None or right is None else left + right
    return None


def _statements(text: str) -> list[str]:
    parts = re.split(r"[;\n{}]", re.sub(r"\{\s*[$%][^{}]*\}", "0", text))  # braces round registers are vectors
    return [part.strip() for part in parts if part.strip()]


def _patterns(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    """`case int(__class__=x)` reads an attribute without an attribute expression."""
    if isinstance(node, ast.MatchClass):
        for name in node.kwd_attrs:
            if _dunder(name) or _leads_out(name):
                yield Finding("screen.dunder", node.lineno, f"matching on {name} is not allowed")


def _definitions(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and _dunder(node.name):
        yield Finding("screen.dunder", node.lineno, f"defining {node.name} is not allowed")
    elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global | ast.Nonlocal):
        yield Finding("screen.statement", node.lineno, f"{type(node).__name__} is not allowed")
    elif isinstance(node, ast.ClassDef) and node.keywords:
        yield Finding("screen.statement", node.lineno, "metaclasses and class keywords are not allowed")


def _leads_out(name: str) -> bool:
    return name in FORBIDDEN_ATTRIBUTES or name.strip("_").removesuffix("_module") in MODULES


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in ALLOWED_DUNDERS


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _dotted(node: ast.expr, modules: dict[str, str]) -> str:
    """Full module path of a dotted expression, "" when it is none."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute):
        parent = _dotted(node.value, modules)
        return f"{parent}.{node.attr}" if parent else ""
    return ""


Rule = Callable[[ast.AST, dict[str, str]], Iterator[Finding]]
# In the order of their findings on one line. Each with the kinds of node that it looks at; none: at any.
RULES: tuple[tuple[Rule, tuple[type[ast.AST], ...]], ...] = (
    (_imports, (ast.Import, ast.ImportFrom)),
    (_names, (ast.Name,)),
    (_attributes, (ast.Attribute,)),
    (_getattr, ()),
    (_formats, (ast.Attribute,)),
    (_assembly, (ast.Attribute, ast.Call)),
    (_patterns, (ast.MatchClass,)),
    (_definitions, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Await, ast.Global, ast.Nonlocal)),
)


def _rules(asks: bool) -> tuple[dict[type[ast.AST], tuple[Rule, ...]], tuple[Rule, ...]]:
    """By kind of node, and those for all other kinds."""
    kinds = {kind for _, of in RULES for kind in of}
    given = {kind: tuple(rule for rule, of in RULES if kind in of or (asks and not of)) for kind in kinds}
    return given, tuple(rule for rule, of in RULES if asks and not of)


PLAIN = _rules(asks=False)
ASKED = _rules(asks=True)  # where the source names one of ASKING: the node above it decides what that means
