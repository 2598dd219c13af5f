"""The page of all ops, from their contracts alone: `kgen ops --markdown > docs/ops.md`.

One table of all, then a section for each op. Nothing in it depends on the machine, on a kernel set or on a run.
"""

from kgen.contract.op import Op, Registry
from kgen.report.op_facts import (
    COST_TOKENS,
    GPUS,
    costs,
    formulas,
    gpus,
    hard_rules,
    judged,
    notes,
    of_ranks,
    one_stands_in,
    short,
    sizes_of,
    steps,
)
from kgen.report.text import cell, code, table

GPU = "h200"
LONG = 2000  # characters of a cell: contracts are our own text, nothing is cut off

INTRO = """# Ops

Written by `kgen ops --markdown > docs/ops.md`; do not edit. `kgen ops show NAME` also has the contract's hash, and
`kgen ops` what serves each op now.

An op is one step of the decode that a kernel can be proposed for. A contract names its arguments in order, what is
computed (bf16(), e4m3() and the like are one rounding to nearest even; sums are float32 or better) and how outputs are
judged. `relL2 x` is the pass rule of [gates.md](gates.md) with floor x. *state* arguments are read and written in
place; rows are contiguous unless a stride is free. Families are the kinds of values that unit-numeric draws; scenarios
are added for the perf sweep. Floor times are the fewest bytes of a call over the plain read rate of an {gpu}
({rate:.2f} TB/s), with the default axes and the inputs of the first family. An op of several GPUs is judged on one,
which holds every rank's share in the buffer that the others fill in a real group; those whose names begin with
`ranked_` are judged on all ranks together ([ranks.md](ranks.md))."""


def markdown(registry: Registry) -> str:
    """The page, one trailing newline."""
    ops = [op for _, op in sorted(registry.every.items())]
    intro = INTRO.format(gpu=GPU.upper(), rate=GPUS[GPU].read / 1e12)
    return "\n\n".join([intro, _overview(ops), *(_section(op) for op in ops)]) + "\n"


def _overview(ops: list[Op]) -> str:
    head = ["op", "what it computes", "GPUs", *(f"µs at {n}" for n in COST_TOKENS)]
    rows = []
    for op in ops:
        dims = op.pack.served[0]
        floors = {row.tokens: short(row.floor_us) for row in costs(op, GPUS[GPU], (dims,))}
        several = f"{gpus(op, dims)}{', one stands in' if one_stands_in(op, dims) else ''}"
        link = f"[`{op.name}`](#{op.name})"
        shown = [floors.get(n, "–") for n in COST_TOKENS]
        rows.append([link, cell(op.title), several, *shown])
    where = ", ".join(map(code, dict.fromkeys(op.pack.served[0] for op in ops)))
    return table(head, rows, right=(3, 4, 5)) + f"\n\nTimes at {where}."


def _section(op: Op) -> str:
    return "\n\n".join([f"## {op.name}", f"```text\n{formulas(op)}\n```", _arguments(op), _facts(op), _costs(op)])


def _arguments(op: Op) -> str:
    how = judged(op)
    rows = [
        [
            code(t.name),
            t.dtype,
            " × ".join(map(str, t.shape)),
            t.role.value,
            cell("; ".join(filter(None, (t.doc, notes(t)))), LONG),
            cell(how.get(t.name, ""), LONG),
        ]
        for t in op.tensors
    ]
    rows += [[code(s.name), s.dtype, "", "scalar", cell(s.doc, LONG), ""] for s in op.scalars]
    return table(["argument", "dtype", "shape", "role", "", "judged"], rows)


def _facts(op: Op) -> str:
    """Lists of a line each."""
    lines = []
    if op.axes:
        axes = "; ".join(f"{code(name)}: {', '.join(values)}" for name, values in op.axes.items())
        lines.append(f"Axes (default first): {axes}")
    if op.runtime_dims:
        lines.append(f"Sizes known at run time only: {', '.join(map(code, op.runtime_dims))}")
    if said := of_ranks(op):
        lines.append(f"Several ranks: {cell(' '.join(said), 2 * LONG)}")
    if rules := hard_rules(op):
        lines.append(f"Hard rules: {cell(rules, LONG)}")
    for title, families in (("Families", op.families), ("Scenarios", op.scenarios)):
        if families:
            lines.append(f"{title}: " + "; ".join(f"{code(f.name)} {cell(f.doc + steps(f), LONG)}" for f in families))
    if op.sweep:
        lines.append("Sweep: " + "; ".join(f"{cell(name)}: {cell(said, LONG)}" for name, said in op.sweep.items()))
    return "\n".join(f"- {line}" for line in lines)


def _costs(op: Op) -> str:
    """A row for each dims name: its sizes, then MB / MFLOP / µs at each token count."""
    found = {(row.dims, row.tokens): row for row in costs(op, GPUS[GPU])}
    rows = []
    for name, sizes in sizes_of(op).items():
        own = op.own_name(name)
        shown = [code(name), f"as {code(own)}" if own != name else ", ".join(f"{k} {v}" for k, v in sizes.items())]
        for tokens in COST_TOKENS:
            row = found.get((own, tokens))
            cost = f"{short(row.bytes / 1e6)} / {short(row.flops / 1e6)} / {short(row.floor_us)}" if row else "–"
            shown.append(cost if own == name else "")
        rows.append(shown)
    return table(["dims", "sizes", *(f"MB / MFLOP / µs at {n}" for n in COST_TOKENS)], rows, right=(2, 3, 4))
