"""What a kernel set serves, in lines; needs neither torch nor a GPU.

    python -m kgen.store.served [SET]       one line an op, architecture and dims; default: the packaged set

Not covered: whether its evidence is fresh (`kgen status`), whether its bytes are whole (`kgen verify`).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from kgen.records import Manifest
from kgen.store.errors import StoreError
from kgen.store.kernelset import KernelSet, parse_problem
from kgen.store.paths import builtin_set


def lines(manifest: Manifest) -> list[str]:
    """`op arch dims axes: tokens 1, 2, 4`, in order."""
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for key in manifest.champions:
        problem = parse_problem(key)
        axes = " ".join(f"{k}={v}" for k, v in sorted(problem.axes.items()))
        found.setdefault((problem.op, problem.arch, problem.dims, axes), []).append(problem.tokens)
    return [
        f"{' '.join(word for word in group if word)}: tokens {', '.join(map(str, sorted(tokens)))}"
        for group, tokens in sorted(found.items())
    ]


def main(argv: Sequence[str]) -> int:
    root = Path(argv[0]) if argv else builtin_set().path
    try:
        said = lines(KernelSet(root).manifest())
    except StoreError as error:
        sys.stderr.write(f"kgen: {error}\n")
        return 5
    sys.stdout.write("".join(f"{line}\n" for line in said or [f"{root} serves no kernel"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
