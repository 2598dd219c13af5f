"""Load promoted artefacts and launch them; any doubt gives the stock op."""
