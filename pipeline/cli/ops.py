"""kgen ops [show NAME]: the op contracts, what serves them, and the page of all of them."""

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.boundary import Usage
from kgen.cli.common import JsonOption, SetOption, find_op, one_of

if TYPE_CHECKING:
    from kgen.contract.op import Op
    from kgen.gates.rates import Rates
    from kgen.report.op_champions import Champion

GpuOption = Annotated[str, typer.Option("--gpu", help="Floor times of: h200 or b300 (default: the GPU here, or h200).")]
BESIDE = 110  # terminal columns from which on what an op computes stands beside its numbers
PROSE = 120  # columns of prose at most


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The ops that kernels can be proposed for.", invoke_without_command=True)
    group.callback()(listing)
    group.command("show")(show)
    app.add_typer(group, name="ops")


def listing(
    context: typer.Context,
    gpu: GpuOption = "",
    kernels: SetOption = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="The page of all contracts, docs/ops.md.")] = False,
    json: JsonOption = False,
) -> None:
    """List the ops: what they compute, how fast memory lets them be, and what serves them."""
    if context.invoked_subcommand is not None:
        return
    from kgen.ops import REGISTRY

    if markdown:
        from kgen.report.ops_page import markdown as page

        output.data(page(REGISTRY).removesuffix("\n"))
        return
    name, rates = _rates(gpu)
    ops = [op for _, op in sorted(REGISTRY.every.items())]
    served = _champions(kernels)
    if json:
        listed = [_listed(op, rates, served.get(op.name, ())) for op in ops]
        output.emit({"schema": "kgen.ops/1", "gpu": name, "read_rate": rates.read, "ops": listed})
        return
    _table(ops, rates, served)
    _below(ops, name, rates, any(c.stale for serving in served.values() for c in serving))


def _rates(gpu: str) -> "tuple[str, Rates]":
    """The chosen GPU; by default the one here where its rates are known."""
    from kgen.report.op_facts import GPUS

    default = next(iter(GPUS))
    if gpu:
        return gpu, GPUS[one_of("--gpu", gpu, tuple(GPUS))]
    import torch

    from kgen.gates.rates import rates

    here = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    found = rates(here) if here else None
    return (here, found) if found else (default, GPUS[default])


def _champions(kernels: str) -> "dict[str, tuple[Champion, ...]]":
    """What serves now. A set that cannot be read takes nothing from the contracts: one line says so."""
    from kgen.cli.sets import current
    from kgen.report.op_champions import champions
    from kgen.store import IntegrityError, KernelSet, StoreError, set_path

    place = set_path(kernels)
    if kernels and not place.path.is_dir():  # a default one may not be there yet; one that was named is a slip
        raise Usage(f"there is no kernel set {place.path}")
    try:
        return dict(champions(KernelSet(place.path), current()))
    except (IntegrityError, StoreError) as error:
        output.say(f"kgen: champions are not shown: {error}")
        return {}


def _listed(op: "Op", rates: "Rates", serving: "tuple[Champion, ...]") -> dict[str, object]:
    from kgen.report.op_facts import costs, gpus

    dims = op.pack.served[0]
    return {
        "name": op.name,
        "title": op.title,
        "dims": op.names(),
        "gpus": {name: gpus(op, name) for name in op.names()},
        "floor_us": {str(row.tokens): row.floor_us for row in costs(op, rates, (dims,))},
        "champions": [vars(champion) for champion in serving],
    }


def _columns() -> int:
    """Of the terminal; wide where the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200


def _prose(text: str) -> None:
    """Paragraphs filled to the terminal's width; those with indented lines (formulas) as they are."""
    for paragraph in text.split("\n\n"):
        formula = any(line.startswith("  ") for line in paragraph.splitlines())
        output.data((paragraph if formula else textwrap.fill(paragraph, min(_columns(), PROSE))) + "\n")


def _table(ops: "list[Op]", rates: "Rates", served: "dict[str, tuple[Champion, ...]]") -> None:
    """One table; in a narrow terminal what the ops compute comes first, in a table of its own."""
    from kgen.report.op_facts import COST_TOKENS, costs, gpus, one_stands_in, short

    beside = _columns() >= BESIDE
    if not beside:
        output.show_table("", ["op", "what it computes"], [[op.name, op.title] for op in ops])
    rows = []
    for op in ops:
        dims, serving = op.pack.served[0], served.get(op.name, ())
        floors = {row.tokens: short(row.floor_us) for row in costs(op, rates, (dims,))}
        several = f"{gpus(op, dims)}{' (1)' if one_stands_in(op, dims) else ''}"
        rows.append(
            [
                op.name,
                *([op.title] if beside else []),
                several,
                *(floors.get(n, "-") for n in COST_TOKENS),
                "\n".join(map(_serving, serving)) or "-",
            ]
        )
    head = ["op", *(["what it computes"] if beside else []), "GPUs"]
    first = len(head)
    head += [*(f"µs@{n}" for n in COST_TOKENS), "champion"]
    output.show_table("", head, rows, right=range(first, first + len(COST_TOKENS)))


def _serving(champion: "Champion") -> str:
    gains = f" {champion.gains[0]:.2f}-{champion.gains[1]:.2f}x" if champion.gains else ""
    return champion.arch + gains + (" stale" if champion.stale else "")


def _below(ops: "list[Op]", gpu: str, rates: "Rates", old: bool) -> None:
    """What the columns mean, once."""
    alike: dict[frozenset[str], list[Op]] = {}
    for op in ops:
        alike.setdefault(frozenset(op.names()), []).append(op)
    for group in alike.values():
        whose = "every op" if len(alike) == 1 else ", ".join(op.name for op in group)
        output.data(f"dims of {whose}: {', '.join(group[0].names())}")
    where = ", ".join(dict.fromkeys(op.pack.served[0] for op in ops))
    output.data(f"µs@n: least bytes of a call at n tokens ({where}) / {_rate(gpu, rates)}")
    output.data("GPUs n (1): the real op spans n; the gates use one, which holds all ranks' parts")
    output.data("champion: speed-up over the best baseline, range over the points that it serves")
    if old:
        output.data("stale: measured under older rules; kgen status names the next command")


def _rate(gpu: str, rates: "Rates") -> str:
    return f"{rates.read / 1e12:.2f} TB/s, {gpu} plain read"


def show(name: str, gpu: GpuOption = "", json: JsonOption = False) -> None:
    """One op's whole contract: formulas, arguments, judging, dims, families, costs."""
    from kgen.report.op_facts import formulas

    op = find_op(name)
    gpu, rates = _rates(gpu)
    if json:
        from kgen.report.op_facts import describe

        output.emit({"schema": "kgen.op/1", "gpu": gpu, **describe(op, rates)})
        return
    _prose(formulas(op))
    _arguments(op)
    _choices(op)
    _inputs(op)
    _costs(op, gpu, rates)
    output.data(f"contract {op.contract_sha256()}")


def _arguments(op: "Op") -> None:
    from kgen.report.op_facts import hard_rules, judged, notes, of_ranks

    rows = [
        [t.name, t.dtype, " x ".join(map(str, t.shape)), t.role.value, "; ".join(filter(None, (t.doc, notes(t))))]
        for t in op.tensors
    ]
    rows += [[s.name, s.dtype, "", "scalar", s.doc] for s in op.scalars]
    several = of_ranks(op)
    behind = "see below for what follows" if several else "workspaces and the stream follow"
    title = f"arguments, in this order; {behind}"
    output.show_table(title, ["name", "dtype", "shape", "role", ""], rows)
    for line in several:
        _prose(line)
    output.show_table("how a call is judged", ["output", "rule"], [[n, words] for n, words in judged(op).items()])
    if rules := hard_rules(op):
        _prose(f"hard rules: {rules}")


def _choices(op: "Op") -> None:
    """Axes, token bins, dims."""
    from kgen.report.op_facts import sizes_of

    if op.axes:
        output.show_table(
            "axes, the default first", ["axis", "values"], [[n, ", ".join(v)] for n, v in op.axes.items()]
        )
    shown = [
        [name, f"as {op.own_name(name)}" if op.own_name(name) != name else ", ".join(f"{k}={v}" for k, v in s.items())]
        for name, s in sizes_of(op).items()
    ]
    output.show_table("dims", ["name", "sizes"], shown)
    if op.runtime_dims:
        output.data(f"known at run time only: {', '.join(op.runtime_dims)}")
    bins, padded = (", ".join(map(str, counts)) for counts in (op.pack.bins, op.pack.padded))
    _prose(f"token bins {bins}; measured padded too: {padded}; promotions claim {', '.join(op.served)}")


def _inputs(op: "Op") -> None:
    from kgen.report.op_facts import steps

    for title, families in (("input families", op.families), ("scenarios of the perf sweep", op.scenarios)):
        if families:
            output.show_table(title, ["name", ""], [[f.name, f.doc + steps(f)] for f in families])
    if op.sweep:
        output.show_table("a broad sweep covers", ["axis", "values"], [list(item) for item in op.sweep.items()])


def _costs(op: "Op", gpu: str, rates: "Rates") -> None:
    from kgen.report.op_facts import costs, short

    rows = [[r.dims, r.tokens, short(r.bytes / 1e6), short(r.flops / 1e6), short(r.floor_us)] for r in costs(op, rates)]
    output.show_table("least cost of a call", ["dims", "tokens", "MB", "MFLOP", "µs"], rows, right=(1, 2, 3, 4))
    output.data(f"µs: MB / {_rate(gpu, rates)}")
