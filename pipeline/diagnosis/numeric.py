"""What unit-numeric's evidence says of the places and causes of wrong numbers. It adds nothing that is not there."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kgen.diagnosis.findings import INTERPRETER, NUMERIC, Finding
from kgen.records import GateResult

FIXES = {
    "memory": "clamp or guard the index; set what is read before it is written",
    "race": "a barrier between the write and the read: sync_threads, cp.async wait, mbarrier, or griddepcontrol.wait",
    "barrier": "every thread of the block must reach the same barrier: none inside a divergent if",
    "mailbox": "keep the rules of a mailbox: armed, sent once, read, armed again by its owner, in this order",
    "wait": "nobody sends what is waited for: compare slot, parity and peer of the sender's store with this load's",
    "guard": "a store outside the tensor: guard the tail",
    "inputs_written": "write outputs, states and workspaces only",
    "unwritten": "every element of the output must be stored, for every token count",
    "nondeterministic": "no atomics on floats, no read before a barrier; re-arm workspaces before the call ends",
    "graph": "nothing may be kept between calls but what is in the workspaces, re-armed",
    "padding": "a row may depend on its own inputs only",
    "hard_rule": "keep the rules stated with the op's formulas",
    "crash": "the kernel faulted: look at indices, alignment and barriers",
    "timeout": "a wait that is never satisfied, or a loop without end",
    "sanitizer": "see the tool's words",
}
RULES = {  # of mailboxes, as the interpreter of several ranks names them
    "overwritten": "the owner must arm every word that it has read, of all sources; call n uses parity n % parities",
    "unordered": "a fence of system scope (cute.arch.fence_acq_rel_sys()) after arming, before the next call's sends",
    "unread": "arm the parity of this call, once its data are read; not that of another call",
    "not-arrived": "look again until the word is no sentinel: a loop, not one look",
    "sentinel-sent": "turn -0 into +0 before sending, so that no pair of bf16 is 0x80000000",
}
SEEN = re.compile(r"^numeric\.(\w+): (.*)$", re.DOTALL)
INTERPRETED = re.compile(r"line \d+: `.*thread \(|thread \([^`]*line \d+")  # of one rank, of several
MAX_FAILURES = 12


def findings(result: GateResult) -> list[Finding]:
    """Common ground of the failures first, then each place, then what the runner or the interpreter saw."""
    where = [w for w in result.evidence.get("where", ()) if isinstance(w, Mapping)]
    return [*_places(where), *_failures(result)]


def _places(where: Iterable[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for entry in where:
        patterns = "; ".join(str(p) for p in entry.get("patterns", ()))
        if "output" not in entry:
            found.append(Finding(NUMERIC, 0, "where", f"wrong {patterns}", "", dict(entry)))
            continue
        share = f"{entry.get('wrong')} of {entry.get('total')} elements of {entry['output']} are wrong"
        at = f"{entry.get('problem')} {entry.get('what')}, call {entry.get('step')}"
        worst = f"; worst at {', '.join(map(str, entry['worst']))}" if entry.get("worst") else ""
        text = f"{at}: {share}: {patterns or 'no pattern'}{worst}"
        found.append(Finding(NUMERIC, 1, "where", text, _fix(patterns), dict(entry)))
    return found


def _fix(patterns: str) -> str:
    hints = (
        ("left out of each sum", "look at the last K step, split-K reduction and the loop's bound"),
        ("added twice", "a K slice is summed by two threads or blocks"),
        ("the last ", "look at the tail: a bound rounded down, or a guard too strict"),
        ("every ", "a lane or vector component is mapped wrongly: look at the index arithmetic of that lane"),
        ("whole tile", "look at what differs for that block or warp: barriers, buffer turn, offset"),
        ("zeros", "nothing is stored or summed there"),
        ("scaled by one factor", "a scale or constant is missing, doubled, or applied twice"),
        ("transposed", "rows and columns of an operand or of the store are exchanged"),
        ("off by", "an index is one off"),
        ("exchanged", "look at the mapping from block or lane to row"),
        ("NaN", "uninitialised accumulator or memory, or an overflow in exp"),
    )
    return next((hint for word, hint in hints if word in patterns), "")


def _failures(result: GateResult) -> list[Finding]:
    """One finding a code, from its first text; how often it came is said."""
    seen: dict[str, list[str]] = {}
    for text in [str(t) for t in result.evidence.get("failures", ())] or [f"{result.code}: {result.message}"]:
        if match := SEEN.match(text):
            seen.setdefault(match[1], []).append(match[2])
    found = []
    for code, texts in list(seen.items())[:MAX_FAILURES]:
        again = f" [{len(texts)} such failures]" if len(texts) > 1 else ""
        kind = INTERPRETER if INTERPRETED.search(texts[0]) else NUMERIC
        priority = 0 if kind == INTERPRETER else 2
        text = " ".join(texts[0].split())[:500] + again
        rule = next((fix for name, fix in RULES.items() if code == "mailbox" and f": {name}: " in texts[0]), "")
        found.append(Finding(kind, priority, f"numeric.{code}", text, rule or FIXES.get(code, "")))
    return found
