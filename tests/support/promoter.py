"""A process that promotes and can be killed: `python promoter.py SET kill STEP` or `python promoter.py SET loop NAME`.

`kill N`: promotes one case and sends itself SIGKILL before durable step N; prints `done` if there are fewer steps.
`loop NAME`: promotes ever new cases until it is killed, printing each sequence number.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.sets import CURRENT, KEY, WIN, make_case

from kgen.promotion import promote
from kgen.store import Durable, SetPath


def kill(target: SetPath, at: int) -> None:
    steps = itertools.count()

    def step(_: str) -> None:
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    promote(target, make_case("new", {1: WIN}), CURRENT, KEY, durable=Durable(step))
    print("done", flush=True)


def loop(target: SetPath, name: str) -> None:
    for n in itertools.count():
        promotion = promote(target, make_case(f"{name} {os.getpid()} {n}", {1: WIN}), CURRENT, KEY)
        print(promotion.seq, flush=True)


if __name__ == "__main__":
    where, mode, argument = SetPath(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
    if mode == "kill":
        kill(where, int(argument))
    else:
        loop(where, argument)
