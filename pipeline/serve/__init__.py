"""Load promoted artefacts and launch them; any doubt gives the stock op."""

from kgen.serve.load import Served, load

__all__ = ["Served", "load"]
