"""The commands put together. Importing this loads neither torch nor the compiler nor LangGraph."""

import sys
from collections.abc import Sequence

import typer

import kgen
from kgen.cli import (
    agents,
    api,
    bench,
    bench_layer,
    boundary,
    config,
    doctor,
    evidence,
    export,
    gate,
    gpu,
    kit,
    lessons,
    ops,
    output,
    propose,
    replay,
    reports,
    runs,
    sets,
    tune,
    watch,
)

HELP = "Agent-assisted CuTe DSL kernels: propose, prove, promote."


def build() -> typer.Typer:
    """The whole application."""
    app = typer.Typer(
        name="kgen",
        help=HELP,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for group in (
        ops,
        propose,
        replay,
        runs,
        watch,
        lessons,
        gate,
        sets,
        reports,
        export,
        tune,
        api,
        kit,
        evidence,
        agents,
        bench,
        bench_layer,
        config,
        doctor,
        gpu,
    ):
        group.register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        output.data(f"kgen {kgen.__version__}")
        raise typer.Exit


def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show it.")) -> None:
    """Propose, prove and promote GPU kernels."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and ends the process with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(boundary.run(build(), arguments))
