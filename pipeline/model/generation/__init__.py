"""What stands above the logits of a decode model: sampling, stop rules, grammars, speculative decoding.

Nothing here knows a model: `protocol` says what an engine, a drafter and a constraint must offer. Only `grammar` needs
the grammar library, and nothing else of the package imports it.
"""
