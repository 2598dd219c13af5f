"""kgen tune: the constants of one candidate that declares them, varied by a model of their space."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from kgen.cli import boundary, output
from kgen.cli.common import (
    AxisOption,
    CacheOption,
    JsonOption,
    QuietOption,
    RunsOption,
    SetOption,
    axes_of,
    cache_at,
    checked,
    find_op,
    one_of,
    places,
    runs_at,
)
from kgen.cli.executors import ExecutorOption, RayAddressOption, WorkersOption, executor_of
from kgen.cli.propose import Arch, Dims, GpuSeconds, Interpret, Minutes, Tokens, Unsafe, drive

PER_ROUND = 4  # variants between two looks at the results


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)


def tune(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A candidate that declares TUNABLES.")],
    op: Annotated[str, typer.Option("--op", help="The op; kgen ops lists them.")],
    trials: Annotated[int, typer.Option("--trials", min=1, help="Variants at most, the file itself included.")] = 24,
    search: Annotated[
        str, typer.Option("--search", help="How they are chosen: tpe, nsga (both by optuna) or random.")
    ] = "tpe",
    seed: Annotated[int, typer.Option("--seed", help="Of the search.")] = 0,
    minutes: Minutes = 60.0,
    max_gpu_seconds: GpuSeconds = None,
    arch: Arch = None,
    dims: Dims = None,
    tokens: Tokens = None,
    axis: AxisOption = None,
    runs: RunsOption = "",
    kernels: SetOption = "",
    cache: CacheOption = "",
    executor: ExecutorOption = "",
    ray_address: RayAddressOption = "",
    workers: WorkersOption = 0,
    promote: Annotated[bool, typer.Option("--promote", help="Promote what comes out promotable.")] = False,
    interpret: Interpret = True,
    unsafe: Unsafe = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Try other values of a candidate's declared constants and take the best as far as this machine can."""
    from kgen.loop.estimate import estimate
    from kgen.loop.session import begin
    from kgen.loop.settings import ARCHS, Settings
    from kgen.proposers.choose import choose
    from kgen.proposers.studies import METHODS
    from kgen.proposers.tune import PARENT

    found, path = find_op(op), Path(file).expanduser()
    if not path.is_file():
        raise boundary.Usage(f"{file} is no file: FILE is a candidate's Python source")
    choice = choose("tune", source=path, search=one_of("--search", search, METHODS))
    source, rounds = path.read_bytes(), -(-trials // PER_ROUND)
    asked = Settings(
        op=found.name,
        proposer="tune",
        search=search,
        seed=seed,
        rounds=rounds,
        candidates=trials,
        patience=rounds,  # a variant that is right is where tuning begins
        minutes=minutes,
        max_gpu_seconds=max_gpu_seconds or 0.0,
        archs=tuple(arch or ARCHS),
        dims=tuple(dims or ()),
        bins=tuple(tokens or ()),
        axes=axes_of(axis or []),
        interpret=interpret,
        unsafe=unsafe,
    )
    settings = checked(asked, found)
    output.log_to_stderr(quiet)
    if not quiet:
        for line in (choice.line, *asked.remarks(found), estimate(runs_at(runs), found, settings)):
            output.say(line)
    executes = executor_of(executor, ray_address, workers, unsafe, quiet)
    run = begin(runs_at(runs), found, settings, shlex.join(["kgen", *sys.argv[1:]]))
    run.durable.write(run.path / PARENT, source)
    where = places(runs, kernels, cache)
    drive(run, found, settings, choice.proposer, cache_at(cache), kernels, where, promote, json, quiet, executes)
