"""What CI can say about the kernels of a change without a GPU, as Markdown: the gates that need none, and the evidence.

    python check.py --base REF [--set DIR] [--arch A] [--tokens N] [--dims NAME] [--out report.md]

For each kernel source that changed since REF: `kgen gate compile`, and `kgen gate unit-numeric` in the PTX interpreter.
For the whole set: its bytes and evidence, and whether the evidence is of today's rules (`kgen verify`). A changed
source that no promotion names has no evidence. Exit 0: all well; 1: something is not, the report says what; 2: it could
not be asked. Standard library only; runs `kgen` from the PATH. Not covered: anything that needs a GPU.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

MARK = "<!-- kgen-kernels -->"  # the comment that is updated
MOST = 65_000  # characters: a comment may have 65,536
WORDS = 300  # of a message
ACTING = "\\`|<>*_[]@#&"  # what Markdown or a site would act on


def asked(*command: str) -> tuple[int, dict]:
    """Exit code and JSON document of a kgen command. Raises RuntimeError (one line) without a document."""
    done = subprocess.run(["kgen", *command, "--json"], capture_output=True, text=True, check=False)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RuntimeError(f"kgen {' '.join(command)} ended with {done.returncode}: {said}") from None


def changed(base: str, kernels: str) -> list[Path]:
    """Kernel sources that were added or altered since the commit that `base` and HEAD have in common."""
    command = ["git", "diff", "--name-only", "-z", "--diff-filter=d", f"{base}...HEAD", "--", kernels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git cannot compare with {base}: {done.stderr.strip()} (a checkout with fetch-depth: 0?)")
    root = Path(subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True).stdout.strip())
    paths = [root / name for name in done.stdout.split("\0") if name]
    return sorted(p for p in paths if p.suffix == ".py" and p.name != "__init__.py")


def cell(text: object) -> str:
    """Foreign words in a table: one line, to be read as they are."""
    line = "".join(c if c.isprintable() else " " for c in str(text))[:WORDS]
    return "".join(f"&#{ord(c)};" if c in ACTING else c for c in line)


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *[[cell(c) for c in row] for row in rows]]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def gates(source: Path, args: argparse.Namespace) -> list[list[object]]:
    """Rows of one source. What does not compile has no numbers to look at."""
    rows: list[list[object]] = []
    points = [word for tokens in args.tokens for word in ("--tokens", str(tokens))]
    for gate, more in (("compile", []), ("unit-numeric", ["--device", "ptx"])):
        where = ["--op", source.parent.name, "--arch", args.arch, "--dims", args.dims, *points, *more]
        _, said = asked("gate", gate, str(source), *where)
        result = said["result"]
        name = f"{source.parent.name}/{source.name}"
        rows.append([name, gate, result["status"], result["code"], result["message"]])
        if result["status"] != "pass":
            break
    return rows


def evidence(sources: list[Path], kernels: str) -> list[list[object]]:
    """Rows of what is wrong with a set's bytes and evidence."""
    _, verified = asked("verify", "--set", kernels, "--no-rebuild", "--no-gates")
    rows = [[f["subject"], f["check"], f["outcome"], f["message"]] for f in verified["findings"]]
    wrong = [row for row in rows if row[2] not in ("ok", "skip")]
    named = {p["source"] for p in json.loads((Path(kernels) / "manifest.json").read_text())["promotions"]}
    for source in sources:
        if f"{source.parent.name}/{source.name}" not in named:
            text = "no promotion names it: kgen promote puts a kernel there with its evidence"
            wrong.append([f"{source.parent.name}/{source.name}", "evidence", "missing", text])
    return wrong


def report(sources: list[Path], args: argparse.Namespace) -> tuple[str, bool]:
    """The whole report, and whether all is well."""
    rows = [row for source in sources for row in gates(source, args)]
    wrong = evidence(sources, args.set)
    well = not wrong and all(row[2] == "pass" for row in rows)
    parts = [MARK, f"## Kernels: {'all well' if well else 'not well'}", ""]
    parts += [
        f"{len(sources)} changed; checked without a GPU at {args.dims}, tokens {', '.join(map(str, args.tokens))}."
    ]
    parts += ["", table(["kernel", "gate", "status", "code", "message"], rows)] if rows else []
    parts += ["", f"Evidence of the set: {'whole, and of the rules that hold now' if not wrong else 'see below'}."]
    parts += ["", table(["what", "check", "outcome", ""], wrong)] if wrong else []
    return "\n".join(parts) + "\n", well


def cut(text: str) -> str:
    """Within what a comment may hold, at the end of a line, with a word on where the rest is."""
    if len(text) <= MOST:
        return text
    return text[:MOST].rsplit("\n", 1)[0] + "\n\nCut here; the whole report is in the log of this job.\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="check.py")
    parser.add_argument("--base", required=True)
    parser.add_argument("--set", default="generated_kernels")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--dims", default="nano")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--out", default="report.md")
    args = parser.parse_args()
    args.tokens = args.tokens or [1]
    try:
        text, well = report(changed(args.base, args.set), args)
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        sys.stderr.write(f"check.py: {error}\n")
        return 2
    Path(args.out).write_text(cut(text), encoding="utf-8")
    sys.stdout.write(text)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
