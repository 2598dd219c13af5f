"""propose -> compile -> unit-numeric -> full-model-eval -> perf-sweep -> promotable, as a LangGraph graph."""
