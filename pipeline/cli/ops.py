"""kgen ops [show NAME]: the op contracts."""

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption, find_op


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The ops that kernels can be proposed for.", invoke_without_command=True)
    group.callback()(listing)
    group.command("show")(show)
    app.add_typer(group, name="ops")


def listing(context: typer.Context, json: JsonOption = False) -> None:
    """List the ops."""
    if context.invoked_subcommand is not None:
        return
    from kgen.ops import REGISTRY

    ops = [REGISTRY.ops[name] for name in sorted(REGISTRY.ops)]
    if json:
        output.emit({"schema": "kgen.ops/1", "ops": [{"name": op.name, "title": op.title} for op in ops]})
        return
    output.show_table("", ["op", "what it computes", "dims"], [[o.name, o.title, ", ".join(o.dims)] for o in ops])


def show(name: str, json: JsonOption = False) -> None:
    """Everything about one op: tensors, scalars, dims, bins, families, floor."""
    op = find_op(name)
    if json:
        output.emit(
            {
                "schema": "kgen.op/1",
                "name": op.name,
                "title": op.title,
                "contract": op.contract_sha256(),
                "doc": op.doc,
                "dims": op.dims,
                "bins": op.pack.bins,
                "served": op.pack.served,
                "tensors": [
                    {"name": t.name, "dtype": t.dtype, "shape": t.shape, "role": t.role, "doc": t.doc}
                    for t in op.tensors
                ],
                "scalars": [{"name": s.name, "dtype": s.dtype, "doc": s.doc} for s in op.scalars],
                "axes": op.axes,
                "families": {f.name: f.doc for f in op.families},
                "floor": op.floor,
            }
        )
        return
    output.data(f"{op.name}: {op.title}\n\n{op.doc.strip()}\n")
    rows = [[t.name, t.dtype, " x ".join(map(str, t.shape)), t.role.value, t.doc] for t in op.tensors]
    rows += [[s.name, s.dtype, "scalar", "", s.doc] for s in op.scalars]
    output.show_table(
        "arguments, in this order; workspaces and the stream follow", ["name", "dtype", "shape", "role", ""], rows
    )
    output.show_table(
        "dims", ["name", "sizes"], [[d, ", ".join(f"{k}={v}" for k, v in s.items())] for d, s in op.dims.items()]
    )
    output.show_table("input families", ["name", ""], [[f.name, f.doc] for f in op.families])
    output.data(f"token bins {', '.join(map(str, op.pack.bins))}; served dims {', '.join(op.pack.served)}")
    output.data(f"floor {op.floor:g} relL2; contract {op.contract_sha256()}")
