"""The conformance lines' probes by name, and the process that runs them inside the sandbox.

Standard library only. A fork of the build server calls `run`; a tool is `main`, the request on stdin.
"""

import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kgen.gates.sandbox import probe_kernel, probe_limits, probe_reach
from kgen.gates.sandbox.attempt import Bait, Untried

MODULES: tuple[ModuleType, ...] = (probe_limits, probe_reach, probe_kernel)


def find(line: str) -> Callable[[Bait], list[str]]:
    """The probe of a line: the function of that name. Raises LookupError."""
    name = line.replace("-", "_")
    found: list[Callable[[Bait], list[str]]] = [vars(m)[name] for m in MODULES if name in vars(m)]
    if not found:
        raise LookupError(f"no probe for {line}")
    return found[0]


def run(request: dict[str, Any]) -> int:
    """Try the lines of `request` in order, and say on stdout what each got away with, as JSON lines."""
    for line in request["lines"]:
        try:
            body: dict[str, Any] = {"line": line, "got": find(line)(request["bait"])}
        except (Untried, OSError) as error:
            body = {"line": line, "untried": f"{type(error).__name__}: {error}"}
        sys.stdout.write("\n" + json.dumps(body) + "\n")
        sys.stdout.flush()
    return 0


def main() -> None:
    """As a tool: the request on stdin. Of several lines each has a process: none lives with what another used up."""
    request = json.load(sys.stdin)
    if len(request["lines"]) == 1:
        run(request)
        return
    for line in request["lines"]:
        pid = os.fork()
        if pid == 0:
            os._exit(run({**request, "lines": [line]}))
        os.waitpid(pid, 0)
