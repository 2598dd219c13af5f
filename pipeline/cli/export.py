"""kgen export: promoted kernels in a form that others can load."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import JsonOption, SetOption, find_op, one_of

if TYPE_CHECKING:
    from kgen.export.hf_kernels import Folder
    from kgen.export.wheel import WheelFile

FORMS = ("hf-kernels", "wheel")


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    ops: Annotated[list[str] | None, typer.Argument(metavar="[OP]...", help="Ops (wheel: default all).")] = None,
    form: Annotated[
        str, typer.Option("--format", help="hf-kernels: a folder for the Hugging Face `kernels` package; or wheel.")
    ] = "hf-kernels",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="The folder to write (wheel: to write it into).")
    ] = "",
    kernels: SetOption = "",
    json: JsonOption = False,
) -> None:
    """Publish what a set serves: a folder for the `kernels` package, or a wheel for serving hosts."""
    from kgen.export import NothingToExport, hf_kernels, wheel
    from kgen.export.part import part
    from kgen.store import KernelSet, set_path

    form, names = one_of("--format", form, FORMS), [find_op(name).name for name in ops or ()]
    if form == "hf-kernels" and len(names) != 1:
        raise boundary.Usage("--format hf-kernels takes exactly one op: each is a repository of its own")
    target = Path(out or (f"kgen-{names[0].replace('_', '-')}" if form == "hf-kernels" else "dist")).expanduser()
    try:
        chosen = part(KernelSet(set_path(kernels).path), names)
        made: Folder | WheelFile
        made = hf_kernels(chosen, find_op(names[0]), target) if form == "hf-kernels" else wheel(chosen, target)
    except NothingToExport as reason:
        raise boundary.Stopped(str(reason)) from None
    except FileExistsError as error:
        raise boundary.Usage(f"{error.filename} {error.strerror}") from None
    if json:
        fields = {"path": str(made.path), "bytes": made.bytes, "points": made.points, "archs": made.archs}
        output.emit({"schema": "kgen.exported/1", "format": form, **fields})
        return
    output.data(f"{made.path}: {made.points} points ({', '.join(made.archs)}), {made.bytes / 2**20:.1f} MiB")
    if form == "hf-kernels":
        output.data(f'load it:  kernels.get_local_kernel(pathlib.Path("{made.path}")).load("DIMS", tokens=1)')
    else:
        output.data(f"install it in place of kgen:  pip install {made.path}")
