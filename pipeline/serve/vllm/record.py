"""What ran where: per token count of a captured graph, which op ran promoted or stock and why; one JSON file a rank.

A captured graph calls no Python when it is replayed: what was captured is what runs. Calls outside of decode graphs
(prefill, eager and mixed steps) are counted by reason, without their token counts; the run before a capture is not.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kgen.serve.load import Served
from kgen.store import DURABLE
from kgen.store.documents import json_bytes

SCHEMA = "kgen.vllm-record/1"
OUTSIDE = "not in a decode graph"


class Record:
    """Counts of calls. Not thread-safe; a worker's forward runs in one thread."""

    def __init__(self) -> None:
        self.captured: dict[int, dict[str, Counter[str]]] = {}  # tokens -> op -> reason ("" promoted) -> calls
        self.outside: dict[str, int] = {}

    def note(self, op: str, tokens: int, reason: str) -> None:
        if reason == OUTSIDE:
            self.outside[op] = self.outside.get(op, 0) + 1
        else:
            self.captured.setdefault(tokens, {}).setdefault(op, Counter())[reason] += 1

    def clear(self) -> None:
        """Forget what was captured: graphs are captured again after each new KV cache."""
        self.captured.clear()

    def counts(self) -> dict[str, dict[str, dict[str, object]]]:
        """tokens -> op -> {"promoted": calls, "stock": {reason: calls}}."""
        return {
            str(tokens): {
                op: {"promoted": found[""], "stock": {r: n for r, n in sorted(found.items()) if r}}
                for op, found in sorted(by_op.items())
            }
            for tokens, by_op in sorted(self.captured.items())
        }

    def line(self) -> str:
        """One line: the token counts of each op's promoted calls, and reasons for the others."""
        ops = sorted({op for by_op in self.captured.values() for op in by_op})
        return "; ".join(self._of(op) for op in ops) or "no decode graph with a seat was captured"

    def _of(self, op: str) -> str:
        by_reason: dict[str, list[int]] = {}
        for tokens, by_op in sorted(self.captured.items()):
            for reason in by_op.get(op, ()):
                by_reason.setdefault(reason, []).append(tokens)
        promoted = by_reason.pop("", [])
        said = f"{op} promoted at {_counts(promoted)} tokens" if promoted else f"{op} promoted nowhere"
        return said + "".join(f", stock at {_counts(tokens)} ({reason})" for reason, tokens in by_reason.items())


def _counts(tokens: Sequence[int]) -> str:
    return ", ".join(map(str, tokens))


def launches(kernels: Mapping[int, Served]) -> dict[str, dict[str, dict[str, int]]]:
    """Bin -> launches that one call must make, and launches of the process since the kernel was loaded, by name."""
    return {str(b): {"per_call": k.launches(), "counted": k.counts()} for b, k in sorted(kernels.items())}


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """In the user's data folder, one file a process."""
    env = os.environ if environ is None else environ
    base = Path(env.get("XDG_DATA_HOME", ""))
    folder = base if base.is_absolute() else Path.home() / ".local" / "share"
    return folder / "kgen" / "vllm" / f"record-{os.getpid()}.json"


def rank_path(path: Path, rank: int, ranks: int) -> Path:
    """`path`, with the rank before its suffix where there are several."""
    return path if ranks == 1 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def write(path: Path, content: Mapping[str, object]) -> None:
    """Replace the file. Raises StoreError."""
    DURABLE.write(path, json_bytes({"schema": SCHEMA, **content}))
