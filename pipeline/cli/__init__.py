"""The `kgen` command: one file a command group, one boundary that turns exceptions into exit codes."""

from kgen.cli.app import main

__all__ = ["main"]
