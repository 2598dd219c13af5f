"""`python -m kgen.loop.again --set DIR --out FILE`: what `kgen verify --all` does, where only torch is installed.

`--full` and `--seconds` as there. Writes FILE (JSON) and says what is not ok. Sources are not rebuilt here; without the
compiler the model gate has no mutants, and says so. Exit status: 0 fine, 2 usage, 3 nothing was run again (no GPU of
the kernels' architecture), 4 something is left or open: the same command goes on, 5 something does not hold.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from kgen.gates.contract import GATE_CONTRACT
from kgen.loop.reproving import PIECE_SECONDS, reprove
from kgen.ops import REGISTRY
from kgen.promotion import Current, Outcome, verify
from kgen.records import to_json
from kgen.store.errors import IntegrityError, StoreError
from kgen.store.paths import cache_path, set_path

FINE, USAGE, NO_GPU, AGAIN, BAD = 0, 2, 3, 4, 5


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    args = _arguments(argv)
    place = set_path(args.set)
    if not place.path.is_dir():
        return _ended(f"there is no kernel set {place.path}", USAGE)
    current = Current({name: op.contract_sha256() for name, op in REGISTRY.every.items()}, GATE_CONTRACT)
    try:
        report, left = verify(place, current), 0
        found = list(report.findings)
        if report.ok:
            cache = args.cache or cache_path()
            got = reprove(place, REGISTRY, cache, _say, full=args.full, seconds=args.seconds or _most(args.full))
            found, left = [*found, *got.findings], len(got.left)
    except IntegrityError as error:
        return _ended(str(error), BAD)
    except StoreError as error:
        return _ended(str(error), AGAIN)
    args.out.write_text(json.dumps({"set": str(place.path), "left": left, "findings": to_json(found)}, indent=1) + "\n")
    for finding in found:
        if finding.outcome is not Outcome.OK:
            _say(f"{finding.outcome}: {finding.subject}, {finding.check}: {finding.message}")
    if any(f.outcome is Outcome.BAD for f in found):
        return BAD
    if any(f.subject == "gates" for f in found):
        return NO_GPU
    open_ = left or any(f.outcome is Outcome.SKIP and f.check != "rebuild" for f in found)
    return AGAIN if open_ else FINE


def _most(full: bool) -> float:
    return PIECE_SECONDS if full else math.inf


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kgen.loop.again")
    parser.add_argument("--set", default="", help="kernel set")
    parser.add_argument("--cache", type=Path, help="folder of linked objects, and of what is done already")
    parser.add_argument("--out", type=Path, default=Path("verified.json"))
    parser.add_argument("--full", action="store_true", help="every gate of every kernel")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin nothing that would end later")
    return parser.parse_args(list(argv))


def _ended(text: str, code: int) -> int:
    _say(text)
    return code


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
