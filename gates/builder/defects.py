"""Deliberate numeric defects: builds that pass compile and audit and that the model gate must refuse.

Trusted code, applied inside the sandbox to a candidate that is already in evidence.
"""

import ast
from collections.abc import Sequence

FACTOR = 1.05
THREADS = 128  # one a column of the tile
# The tile begins here, across what a norm over 128 columns takes together: that would forgive a tile scaled whole
BEGINS = 64


class DefectError(Exception):
    """The defect cannot be applied to this candidate."""


# rank of the tensor -> its element that a thread scales: one tile of the last dimension
ELEMENTS = {1: "row", 2: "row, column", 3: "row, 0, column"}


def tile(columns: int) -> tuple[int, int]:
    """First column of the scaled tile and the one behind its last; half of a row that has no room for a whole tile."""
    if columns < BEGINS + THREADS:
        return 0, max(1, columns // 2)
    return BEGINS, BEGINS + THREADS


def scaled(tensors: int, scalars: int, workspaces: int, out: int, shape: Sequence[object]) -> str:
    """Source of a module whose `wrap(host)` calls `host` and then scales one tile of tensor `out` by 1.05.

    `shape`: that tensor's. Raises DefectError for one that has no tiles.
    """
    if len(shape) not in ELEMENTS:
        raise DefectError(f"tile_scale does not apply to an output of {len(shape)} dimensions")
    element, last = ELEMENTS[len(shape)], shape[-1]
    begin, end = tile(last) if len(shape) > 1 and isinstance(last, int) else (0, 1)
    kinds = ["cute.Tensor"] * tensors + ["cutlass.Numeric"] * scalars + ["cute.Tensor"] * workspaces
    parameters = ", ".join(f"a{i}: {kind}" if kind == "cute.Tensor" else f"a{i}" for i, kind in enumerate(kinds))
    arguments = ", ".join(f"a{i}" for i in range(len(kinds)))
    return f"""
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def scale_one_tile(out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    column = thread + {begin}
    if column < {end}:
        out[{element}] = (out[{element}].to(cutlass.Float32) * {FACTOR}).to(out.element_type)


class Scaled:
    def __init__(self, host):
        self.host = host

    @cute.jit
    def __call__(self, {parameters}, stream: cuda.CUstream):
        self.host({arguments}, stream)
        scale_one_tile(a{out}).launch(grid=[a{out}.shape[0], 1, 1], block=[{THREADS}, 1, 1], stream=stream)


def wrap(host):
    return Scaled(host)
"""


def drop_last_k(source: str) -> str:
    """The candidate with one iteration less in its first accumulating loop. Raises DefectError without such a loop."""
    tree = ast.parse(source)
    loops = sorted((n for n in ast.walk(tree) if isinstance(n, ast.For)), key=lambda n: (n.lineno, n.col_offset))
    for node in loops:
        if _trip_count(node) is not None and _accumulates(node):
            call = node.iter
            assert isinstance(call, ast.Call)
            position = 0 if len(call.args) == 1 else 1
            call.args[position] = ast.BinOp(call.args[position], ast.Sub(), ast.Constant(1))
            return ast.unparse(ast.fix_missing_locations(tree))
    raise DefectError("no loop over range_constexpr(...) or cutlass.range(...) accumulates: drop_last_k does not apply")


def _trip_count(loop: ast.For) -> ast.expr | None:
    """The stop argument of `range(...)`, `cutlass.range(...)` or `range_constexpr(...)`."""
    call = loop.iter
    if not isinstance(call, ast.Call) or not call.args or len(call.args) > 2:
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return call.args[min(1, len(call.args) - 1)] if name in ("range", "range_constexpr") else None


def _accumulates(loop: ast.For) -> bool:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "gemm":
            return True
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            return True
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            left = ast.dump(node.value.left).replace("Load()", "")
            if any(ast.dump(target).replace("Store()", "") == left for target in node.targets):
                return True  # x = x + ...
    return False
