"""kgen: turn an untrusted kernel proposal into a kernel that a decode path can load, or into a reasoned refusal.

Importing this package loads none of torch, cutlass, openai and langgraph.
"""

__version__ = "0.1.0"
