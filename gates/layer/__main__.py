"""`python -m kgen.gates.layer --set DIR --out FILE`: what `kgen bench-layer` does, where only torch is installed.

Writes FILE (JSON), FILE's name with `.md`, and a picture a point beside it. Exit status: 0 measured, 1 a point was
refused, 2 usage, 3 no GPU here, 4 some points are left or broke off: the same command goes on, 5 the kernel set is
damaged.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from kgen.gates.environment import device_arch
from kgen.gates.layer import picture
from kgen.gates.layer.markdown import markdown
from kgen.gates.layer.points import (
    CONTEXTS,
    EVEN,
    KINDS,
    REPETITIONS,
    SKEWED,
    TOKENS,
    Job,
    default_settings,
    points,
    settings,
)
from kgen.gates.layer.prefetch import SCHEDULES, SPELLED, schedules
from kgen.gates.layer.run import Ended, run
from kgen.gates.layer.traced import unfit, words
from kgen.gates.routing import recorded
from kgen.records import RecordError
from kgen.store.errors import IntegrityError, StoreError

MEASURED, REFUSED, USAGE, NO_GPU, AGAIN, UNSOUND = 0, 1, 2, 3, 4, 5
SECONDS = 480.0


def main(argv: Sequence[str]) -> int:
    """Exit status; one line on stderr for what is wrong."""
    args = _arguments(argv)
    if args.device != "cpu" and not torch.cuda.is_available():
        return _complain("no CUDA GPU here; --device cpu runs the small model on stand-ins", NO_GPU)
    arch = device_arch() if args.device != "cpu" else ""
    try:
        chosen = points(_words(args.setting), _words(args.layer), _numbers(args.tokens), _numbers(args.context))
        trace = recorded(args.routing_trace) if args.routing_trace else None
        if trace and (why := unfit(trace, _words(args.setting), _numbers(args.tokens), args.routing)):
            raise ValueError(why)
        jobs = [
            Job(
                p,
                args.device,
                arch,
                args.set,
                args.repetitions,
                args.seed,
                words(trace) if trace else args.routing,
                not args.no_compile,
                args.each,
                prefetch=schedules(_words(args.prefetch)),
                trace=trace.sha256 if trace else "",
            )
            for p in chosen
        ]
        ended = run(jobs, args.out, args.seconds, _say, args.routing_trace)
    except (ValueError, RecordError) as error:
        return _complain(str(error), USAGE)
    except IntegrityError as error:
        return _complain(str(error), UNSOUND)
    except StoreError as error:
        return _complain(str(error), AGAIN)
    page = args.out.with_suffix(".md")
    page.write_text(markdown(ended.record, pictures=picture.write(ended.record, page)), encoding="utf-8")
    return status(ended)


def status(ended: Ended) -> int:
    """What a command ends with."""
    if ended.left or ended.broken:
        return AGAIN
    return REFUSED if ended.record.refused else MEASURED


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kgen.gates.layer")
    parser.add_argument("--set", default="", help="kernel set (default: those that serving looks into)")
    parser.add_argument("--out", type=Path, default=Path("layers.json"))
    parser.add_argument("--setting", default="", help=f"of {', '.join(settings())}; several with commas")
    parser.add_argument("--layer", default=",".join(KINDS), help="kinds of layers")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--context", default=",".join(map(str, CONTEXTS)))
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--routing", choices=(EVEN, SKEWED), default=EVEN)
    parser.add_argument("--routing-trace", type=Path, help="rows go to the experts of recorded tokens")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument(
        "--prefetch", default="", help=f"of {', '.join(SCHEDULES)}, or {SPELLED}: the chain's, then others to compare"
    )
    parser.add_argument("--each", action="store_true", help="also without each promoted op in turn")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no new point is begun after these")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args(list(argv))
    args.setting = args.setting or ",".join(default_settings(args.device))
    return args


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _numbers(text: str) -> list[int]:
    """Raises ValueError (one line)."""
    if wrong := [word for word in _words(text) if not word.isdigit()]:
        raise ValueError(f"{wrong[0]!r} is no number")
    return [int(word) for word in _words(text)]


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"kgen layer: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
