"""plan -> propose -> compile -> unit-numeric -> full-model-eval -> perf-sweep -> judge, and round again with what was
learnt.

The only place that knows LangGraph. The checkpoint (graph.sqlite) is a convenience derived from the run folder.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from kgen.loop.rounds import read_rounds
from kgen.loop.steps import State, Steps
from kgen.loop.work import Work
from kgen.records import GATES
from kgen.store import IntegrityError, StoreError

CHECKPOINT = "graph.sqlite"
NODES_A_ROUND = 7
UNREADABLE = (sqlite3.Error, ValueError, TypeError, LookupError, AttributeError, EOFError)  # of a checkpoint

Graph = CompiledStateGraph[State, None, State, State]


def build(steps: Steps, saver: SqliteSaver) -> Graph:
    """The loop. A candidate that a gate stops is not alive; a round without a living one is judged at once."""
    graph = StateGraph(State)
    # partial: LangGraph would look through the instructions of a plain method for graphs that it may run
    graph.add_node("plan", partial(steps.plan))
    graph.add_node("propose", partial(steps.propose))
    graph.add_node("compile", partial(steps.compile))
    for gate in GATES[1:]:
        graph.add_node(gate, partial(steps.gate, gate))
    graph.add_node("judge", partial(steps.judge))

    graph.add_conditional_edges(START, lambda s: not s["over"], {True: "plan", False: END})
    graph.add_conditional_edges("plan", lambda s: not s["over"], {True: "propose", False: END})
    graph.add_conditional_edges("propose", lambda s: bool(s["candidates"]), {True: "compile", False: END})
    for gate, following in pairwise((*GATES, "judge")):
        graph.add_conditional_edges(gate, lambda s: bool(s["alive"]), {True: following, False: "judge"})
    graph.add_edge("judge", "plan")
    return graph.compile(checkpointer=saver)


def drive(work: Work) -> str:
    """Run the loop to its end, from wherever it was; returns why it ended.

    Raises IntegrityError where a folder has the checkpoint's name, StoreError where no database can be kept there.
    """
    path, steps = work.run.path / CHECKPOINT, Steps(work)
    if folder := next((p for p in _files(path) if p.is_dir()), None):
        raise IntegrityError(f"{folder} is a folder, where the run keeps a file: move it away, nothing is lost with it")
    rounds = max(work.settings.rounds, len(read_rounds(work.run))) + 1
    config: RunnableConfig = {
        "configurable": {"thread_id": work.run.id},
        "recursion_limit": NODES_A_ROUND * rounds + NODES_A_ROUND,
    }
    goes_on = False
    try:
        if path.exists():  # a new run has none to look at
            with _saver(path) as saver:
                goes_on = _fits(work, build(steps, saver), config)
                if not goes_on:
                    saver.delete_thread(work.run.id)
    except UNREADABLE:  # damaged within, or of another LangGraph
        _remove(path)
    with _keeping(path), _saver(path) as saver:
        final = build(steps, saver).invoke(None if goes_on else steps.resumed(), config, durability="sync")
    return str(final["over"])


def _fits(work: Work, graph: Graph, config: RunnableConfig) -> bool:
    """Whether the checkpoint is in the middle of the very round that the run folder has open."""
    snapshot = graph.get_state(config)
    values = snapshot.values
    opened = next((r for r in read_rounds(work.run) if not r.judged), None)
    if not snapshot.next or opened is None or snapshot.next in (("plan",), ("propose",)):
        return False
    return values.get("round") == opened.number and values.get("candidates") == list(opened.candidates)


@contextmanager
def _saver(path: Path) -> Iterator[SqliteSaver]:
    """The checkpointer; a damaged file is removed, since nothing is lost with it."""
    try:
        with closing(sqlite3.connect(path)) as probe:
            sound = probe.execute("pragma integrity_check").fetchone() == ("ok",)
    except sqlite3.DatabaseError:
        sound = False
    if not sound:
        _remove(path)
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.conn.execute("pragma synchronous = normal")  # no step waits for the disk: the run folder has all of it
        yield saver


@contextmanager
def _keeping(path: Path) -> Iterator[None]:
    """SQLite names no file when the file system refuses."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(path, f"cannot keep {path}: {error}; see to room and rights there, then resume") from error


def _remove(path: Path) -> None:
    for file in _files(path):
        with suppress(FileNotFoundError):
            file.unlink()


def _files(path: Path) -> tuple[Path, ...]:
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
