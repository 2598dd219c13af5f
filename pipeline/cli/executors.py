"""Options that say where the gates run, for the commands that run them."""

from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import one_of

if TYPE_CHECKING:
    from kgen.pool.base import Executor

ExecutorOption = Annotated[str, typer.Option("--executor", help="Where gates run: local (the default) or ray.")]
RayAddressOption = Annotated[
    str, typer.Option("--ray-address", metavar="HOST:PORT", help="A Ray cluster's head; chooses --executor ray.")
]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=0, help="Builds or interpretations at a time, on each machine (0: its cores).")
]


def executor_of(name: str, address: str, workers: int, unsafe: bool, quiet: bool) -> "Executor":
    """Raises Usage, NoRay, PoolError."""
    from kgen.pool.choose import EXECUTORS, choose

    one_of("--executor", name, ("", *EXECUTORS))
    try:
        found = choose(name, address, workers, (lambda line: None) if quiet else output.say)
    except ValueError as error:
        raise boundary.Usage(str(error)) from None
    if unsafe and not found.here:
        found.close(at_once=True)
        raise boundary.Usage("--unsafe-no-sandbox builds on this machine only: leave out --executor and --ray-address")
    return found
