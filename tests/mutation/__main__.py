"""`python -m mutation` (with tests/ on the path): mutate the judging code, run the tests that reach each change.

python -m mutation                      everything, from the start; writes record.json
python -m mutation --again              only what was alive last time, after tests were added
python -m mutation --module X --share 0.3    a sample (fixed seed) of one module; writes no record
python -m mutation --lines              survivors with their lines
"""

import argparse
import ast
import gc
import hashlib
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from mutation import forks, record
from mutation.areas import BUDGET, FIRST, MODULES, sources, test_files
from mutation.cover import Cover, cover
from mutation.mutants import Mutant, mutants
from mutation.session import WORK, Session

SEED = 20261130
RESULTS = WORK / "results.json"
DAYS = WORK / "days.json"


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--again", action="store_true", help="keep what was killed, try the rest")
    parser.add_argument("--alive", action="store_true", help="keep all results, try those again that were alive")
    parser.add_argument("--module", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument(
        "--share", type=float, default=1.0, help="part of each module's mutants, drawn with a fixed seed"
    )
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so long; --again goes on")
    parser.add_argument(
        "--also", action="append", type=Path, default=[], help="results.json of another run, e.g. in a second checkout"
    )
    parser.add_argument(
        "--files",
        default="*",
        help="only tests of files of these patterns (a,b): what lives through them counts as alive",
    )
    parser.add_argument("--listed", action="store_true", help="try those that are listed as equivalent too")
    parser.add_argument("--lines", action="store_true", help="only print the survivors of the last run")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    WORK.mkdir(exist_ok=True)
    texts, results = sources(), _results(fresh=not (chosen.again or chosen.alive or chosen.lines))
    for path in chosen.also:
        _taken_over(path, results)
    everything = [m for module, text in texts.items() for m in mutants(module, text)]
    if chosen.lines:
        _show(everything, results)
        return 0
    todo = _drawn(everything, chosen.module or MODULES, chosen.share)
    listed = {e.key for e in record.equivalents()}
    todo = [m for m in todo if results.get(_id(m, texts)) not in (forks.KILLED, forks.TIMEOUT)]
    todo = [m for m in todo if chosen.listed or m.key not in listed]
    todo = [m for m in todo if not chosen.alive or results.get(_id(m, texts)) == forks.ALIVE]
    files = [f for f in test_files() if any(fnmatch(f.name, p) for p in chosen.files.split(","))]
    lines = _map(texts, files, keep=chosen.again or chosen.alive)
    _tried(todo, texts, Session(files), lines, results, time.monotonic() + 60 * chosen.minutes)
    by_key = {m.key: results[_id(m, texts)] for m in everything if _id(m, texts) in results}
    body = record.summed(everything, record.Tried(by_key, _days(texts)), texts, chosen.share, SEED)
    for line in record.table(body):
        say(line)
    if not chosen.module:
        record.write(body)
        for line in record.page(body):
            say(line)
    return 0 if all((body["modules"][m]["score"] or 0) >= record.LEAST for m in chosen.module or MODULES) else 1


def _drawn(everything: Iterable[Mutant], modules: Sequence[str], share: float) -> list[Mutant]:
    """What compares, decides and promotes whole and first; of the others a share, mixed, so that a run that is ended
    early has some of each."""
    first: list[Mutant] = []
    others: list[Mutant] = []
    for module in sorted(modules, key=lambda m: FIRST.index(m) if m in FIRST else len(FIRST)):
        own = [m for m in everything if m.module == module]
        if module in FIRST or share >= 1:
            first += own
        else:
            others += random.Random(f"{SEED} {module}").sample(own, max(1, round(share * len(own))))
    random.Random(SEED).shuffle(others)
    return first + others


def _id(mutant: Mutant, texts: dict[str, str]) -> str:
    """A result belongs to one text of the module."""
    return f"{_text_id(mutant.module, texts)} {mutant.key}"


def _text_id(module: str, texts: dict[str, str]) -> str:
    return hashlib.sha256(texts[module].encode()).hexdigest()[:12]


def _of_text(module: str, texts: dict[str, str]) -> str:
    return f"{_text_id(module, texts)} {module}"


def _days(texts: dict[str, str]) -> dict[str, str]:
    """The last day on which a mutant of each module's text was tried."""
    known = _noted(DAYS)
    return {module: known.get(_of_text(module, texts), "") for module in texts}


def _note(module: str, day: str) -> None:
    known = _noted(DAYS)
    DAYS.write_text(json.dumps({**known, module: max(day, known.get(module, ""))}))


def _noted(path: Path) -> dict[str, str]:
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return known


def _taken_over(path: Path, results: dict[str, str]) -> None:
    """Results of a run elsewhere, which name the text that they belong to; a kill anywhere is a kill."""
    for key, got in json.loads(path.read_text()).items():
        if results.get(key) not in (forks.KILLED, forks.TIMEOUT):
            results[key] = got
    for module, day in _noted(path.with_name(DAYS.name)).items():
        _note(module, day)


def _results(fresh: bool) -> dict[str, str]:
    known: dict[str, str] = {} if fresh or not RESULTS.exists() else json.loads(RESULTS.read_text())
    return known


def _map(texts: dict[str, str], files: list[Path], keep: bool) -> Cover:
    """In a fork, since it puts probes into the code. With `keep`, only test files that have changed run again."""
    path = WORK / ("cover.json" if files == test_files() else "cover-of-some.json")
    if not keep:
        path.unlink(missing_ok=True)
    if (pid := os.fork()) == 0:
        status = 1
        try:
            cover(files, texts, path, say)
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the tests could not be run once: no map")
    return Cover.load(path)


def _tried(
    todo: Sequence[Mutant],
    texts: dict[str, str],
    session: Session,
    lines: Cover,
    results: dict[str, str],
    end: float,
) -> None:
    looking = lines.idle()
    known = forks.functions(list(MODULES))
    gc.freeze()  # forks then share what they do not write
    for number, mutant in enumerate(todo):
        if time.monotonic() > end:
            say(f"out of time: {len(todo) - number} not tried; go on with --again")
            break
        names = lines.ordered((n for n in _reached(mutant, texts, lines) if n in session.items), BUDGET)
        if not mutant.function:  # a constant: who looks at values only is the quickest to see it
            names = tuple(sorted(names, key=lambda n: n not in looking))
        seconds = [lines.seconds[n] for n in names]
        began = time.monotonic()

        got = forks.ALIVE
        if names:
            put = partial(forks.swap, known, mutant, texts[mutant.module])
            try:
                got = forks.in_fork(partial(_passes, session, put, names, seconds), 40 * sum(seconds) + 120)
            except forks.Changed as error:
                say(f"not tried: {error}")
                continue
        results[_id(mutant, texts)] = got
        if number == 0 or todo[number - 1].module != mutant.module or number + 1 == len(todo):
            _note(_of_text(mutant.module, texts), time.strftime("%Y-%m-%d", time.gmtime()))
        if got == forks.ALIVE or number % 50 == 0:
            say(f"{number + 1}/{len(todo)} {got} {time.monotonic() - began:.1f} s, {len(names)} tests: {mutant.key}")
        if number % 20 == 0:
            RESULTS.write_text(json.dumps(results))
    RESULTS.write_text(json.dumps(results))


def _passes(
    session: Session, put: Callable[[], None], names: Sequence[str], seconds: Sequence[float], folder: Path
) -> bool:
    """In the fork."""
    session.own_folder(folder)
    put()
    return session.passes(names, seconds)


def _reached(mutant: Mutant, texts: dict[str, str], lines: Cover) -> set[str]:
    """The tests that execute the changed statement; of what runs at import, the lines that use the name it
    gives, and the tests that execute none: they look at what was made."""
    if mutant.function:
        span = _span(texts[mutant.module], mutant.line)
        return lines.of((mutant.module, n) for n in span)
    text = texts[mutant.module].splitlines()[mutant.line - 1]
    names = re.findall(r"\w+", re.split("[=:(]", text.strip().removeprefix("def "))[0])
    word = re.compile(rf"\b({'|'.join(names)})\b") if names else re.compile(r"\w")
    uses = [
        (module, n)
        for module, whole in texts.items()
        for n, line in enumerate(whole.splitlines(), 1)
        if word.search(line) and (module, n) in lines.lines
    ]
    own = [(m, n) for m, n in lines.lines if m == mutant.module]
    return (lines.of(uses) or lines.of(own)) | lines.idle()


@cache
def _span(text: str, line: int) -> range:
    """The lines of the statement that starts there (of a compound one, its head)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno == line:
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else (node.end_lineno or line)
            return range(line, max(line, last) + 1)
    return range(line, line + 1)


def _show(everything: Iterable[Mutant], results: dict[str, str]) -> None:
    alive = {key.split(" ", 1)[1] for key, got in results.items() if got == forks.ALIVE}
    listed = {e.key for e in record.equivalents()}
    for mutant in everything:
        if mutant.key in alive and mutant.key not in listed:
            say(f"{mutant.module}:{mutant.line} {mutant.function}\n    {mutant.before}\n    {mutant.after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
