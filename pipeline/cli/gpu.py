"""kgen gpu [release UUID]: who has which GPU of this host, which are in quarantine, and the way out of it."""

from typing import Annotated

import typer

from kgen.cli import output
from kgen.cli.common import JsonOption, arguments


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The GPUs here: who has them, and which are in quarantine.", invoke_without_command=True)
    group.callback()(listing)
    group.command("release")(release)
    app.add_typer(group, name="gpu")


def listing(context: typer.Context, json: JsonOption = False) -> None:
    """List the GPUs, and those in quarantine that are not visible now."""
    if context.invoked_subcommand is not None:
        return
    from kgen.gates.gpu import devices, lease, places, quarantine
    from kgen.records import to_json

    bench = devices.bench("cuda")
    found = bench.devices() if bench is not None else ()
    sick = {record.device: record for record in quarantine.listed()}
    owners = {device.uuid: lease.owner_of(device) for device in found}
    if json:
        listed = [{"uuid": d.uuid, "name": d.name, "owner": to_json(owners[d.uuid])} for d in found]
        body = {"schema": "kgen.gpus/1", "folder": str(places.folder()), "gpus": listed}
        output.emit({**body, "quarantine": [to_json(record) for record in sick.values()]})
        return
    rows = [[d.uuid, d.name, f"in use by {owners[d.uuid]}" if owners[d.uuid] else "free"] for d in found]
    output.show_table("" if rows else "no CUDA GPU here", ["GPU", "name", "state"], rows)
    for record in sick.values():
        output.data(f"{record}\n  when it is well again: kgen gpu release {record.device}")


def release(uuid: Annotated[str, typer.Argument(metavar="UUID", help="Of the GPU, or how it begins.")]) -> None:
    """Take a GPU out of quarantine: after a reset or a repair."""
    from kgen.gates.gpu import quarantine

    with arguments():
        output.data(f"released; {quarantine.release(uuid)}")
