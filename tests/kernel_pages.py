"""Pages of what was measured: what lies between their marks is made from committed evidence and records.

    PYTHONPATH=tests python -m kernel_pages          rewrites README.md, runs/README.md, docs/{vllm,ranks,layers}.md and
                                                     docs/kernels/*.md
    PYTHONPATH=tests python -m kernel_pages --check  says which of them differ from what it would write; exit 1 then

A region is `<!-- generated: NAME WORD... -->`, its text, `<!-- end -->`; KINDS has the names. What stands outside is
written by hand and stays. Run it after every promotion; a test compares.
"""

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bounding import page
from support import kernel_tables as tables
from support import layers_measured, ranks_measured, ranks_model, staged, vllm_served
from support.checkout import ROOT
from support.committed import SET, Timed, evidence, promoted, serving, timed
from support.vllm_served import wrapped

from kgen.ops import REGISTRY
from kgen.records import Evidence, Promotion
from kgen.store.kernelset import parse_problem

PAGES = ROOT / "docs" / "kernels"
INDEX = PAGES / "README.md"
DOCUMENTS = (ROOT / "README.md", ROOT / "runs" / "README.md", ROOT / "docs" / "vllm.md", ROOT / "docs" / "ranks.md")
LAYERS = ROOT / "docs" / "layers.md"  # whole
REGION = re.compile(r"(<!-- generated: ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
BY_HAND = ("moe_shared",)  # ops whose results README.md and runs/README.md tell in their own words
TITLES = {"TP8": "k3-tp8", "TP16": "k3-tp16"}
HEADLINE_BINS = (1, 2, 4, 8, 16, 32, 64)
FLAVOUR = "python3 kit.pyz --out evidence.json --raw raw.json.xz   # on the GPU host"


def documents() -> list[Path]:
    """Every page that has regions."""
    return [*DOCUMENTS, *sorted(PAGES.glob("*.md"))]


def rewritten(text: str, root: Path = SET) -> str:
    """`text` with every region made anew from the set at `root`."""

    def region(found: re.Match[str]) -> str:
        name, *words = found[2].split()
        if name not in KINDS:
            raise ValueError(f"no region {name!r}; there are {', '.join(sorted(KINDS))}")
        return found[1] + KINDS[name](root, *words) + found[4]

    return REGION.sub(region, text)


def others(root: Path) -> list[str]:
    """Promoted ops whose sections are generated."""
    return [op for op in promoted(root) if op not in BY_HAND]


def bins_region(root: Path, op: str) -> str:
    return "\n" + tables.bins_table(op, TITLES, HEADLINE_BINS, root) + "\n"


def plain_region(root: Path, op: str, dims: str) -> str:
    return "\n" + tables.plain_table(op, dims, root) + "\n"


def summary_region(root: Path) -> str:
    """README.md's table of all other ops."""
    if not (ops := others(root)):
        return "\nNo kernel of another op serves yet.\n\n"
    found = [(p, evidence(p, root)) for op in ops for p in serving(op, root)]
    archs = ", ".join(sorted({f"`{p.arch}` ({e.environment.gpu})" for p, e in found}))
    first = ", each the first point of its family" if all(_known(p) == 0 for p, _ in found) else ""
    said = wrapped(
        f"Kernels of {len(ops)} more ops serve for {archs}{first}. Times and gains are as above, at TP8 widths with"
        " default axes (or those named) and typical inputs. The counts are of all points that were measured: those that"
        " *left* were slower than the best baseline and stay with the stock op; they are – here."
    )
    return f"\n{said}\n" + tables.summary_table(ops, root) + "\n"


def sections_region(root: Path) -> str:
    """runs/README.md's sections of all other ops."""
    made = [_section(op, p, root) for op in others(root) for p in serving(op, root)]
    return "\n" + _kits(root) + "".join(made)


def _section(op: str, promotion: Promotion, root: Path) -> str:
    found = evidence(promotion, root)
    points = [each for each in timed(op, root) if each.seq == promotion.seq]
    title = f"## {op}, {promotion.arch}: `{promotion.candidate[:12]}`\n\n"
    when = f"Run `{found.run}`, measured from {found.started} to {found.finished}."
    measured = wrapped(f"{_machine(found)} {when} {_verdict(points)}") + "\n"
    commands = "\n".join(
        (propose_command(promotion, found), "kgen kit latest -o kit.pyz", FLAVOUR,
         "kgen ingest evidence.json --raw raw.json.xz", "kgen promote latest")
    )  # fmt: skip
    return f"{title}{measured}```sh\n{commands}\n```\n\n{_source(promotion)}{_points(points)}"


def _machine(found: Evidence) -> str:
    e = found.environment
    return f"On one {e.gpu} with torch {e.torch}, CUDA {e.cuda}, Python {e.python}, driver {e.driver}."


def _known(promotion: Promotion) -> int | None:
    """Which known point of its family a promoted candidate is today."""
    known = tables.known_points(promotion.op)
    return known.index(promotion.candidate) if promotion.candidate in known else None


def propose_command(promotion: Promotion, found: Evidence) -> str:
    """The command that makes the candidate again, at the points that the evidence is of."""
    op, at = REGISTRY.get(promotion.op), _known(promotion)
    problems = [parse_problem(key) for key in found.objects]
    dims, bins = {p.dims for p in problems}, sorted({p.tokens for p in problems})
    who = f"--proposer search --seed 0 --candidates {at + 1}" if at is not None else "--proposer mailbox --mailbox DIR"
    words = [f"kgen propose --op {op.name} {who}"]
    if dims != {*op.served, op.pack.small}:
        words += [f"--dims {name}" for name in sorted(dims)]
    if tuple(bins) != tuple(sorted(op.pack.bins)):
        words += [f"--tokens {n}" for n in bins]
    axes = {pair for p in problems for pair in tables.variant_axes(p).items()}
    words += [f"--axis {shlex.quote(f'{name}={value}')}" for name, value in sorted(axes)]
    return " ".join(words)


def _source(promotion: Promotion) -> str:
    at, file = _known(promotion), f"`generated_kernels/{promotion.source}`"
    if at is None:
        return f"The source is {file}: the answer to give in DIR.\n\n"
    number = "first" if at == 0 else f"number {at + 1}"
    return f"The candidate is the {number} that `search` proposes; its source is {file}.\n\n"


def _kits(root: Path) -> str:
    """How kernels that were in place in one evaluation were measured: words and commands, "" where none were."""
    found: dict[str, list[str]] = {}
    for op in others(root):
        for promotion in serving(op, root):
            facts = evidence(promotion, root).facts
            if facts.get("together"):
                found.setdefault(str(facts.get("kit", "")), []).append(op)
    if not found:
        return ""
    sets = "; ".join(", ".join(sorted(set(ops))) for ops in found.values())
    said = wrapped(
        f"These were measured by one kit with full-model-eval once, all of them in place: {sets}. The runs are made one"
        " by one with the first command of each section, then:"
    )
    return (
        f"## One kit for several kernels\n\n{said}\n"
        "```sh\nkgen kit RUN RUN RUN -o kit.pyz\npython3 kit.pyz --together     # on the GPU host\n"
        "kgen ingest evidence.RUN.json --raw raw.RUN.json.xz     # run by run\nkgen promote RUN\n```\n\n"
        "The commands of a section measure its kernel alone.\n\n"
    )


def _verdict(points: list[Timed]) -> str:
    by = tables.outcomes(points)
    wins, left = len(by["win"]), len(by["left"])
    said = f"{wins} {'point wins' if wins == 1 else 'points win'}, {len(by['tie'])} tie"
    if not left:
        return f"{said}, none left the envelope."
    names = [f"{p.dims} {' '.join(f'{k}={v}' for k, v in tables.variant_axes(p).items())}".strip() for p in by["left"]]
    gone = {n: [str(p.tokens) for p, m in zip(by["left"], names, strict=True) if m == n] for n in names}
    which = "; ".join(f"{', '.join(bins)} tokens at {name}" for name, bins in gone.items())
    return f"{said}, {left} left the envelope and {'stays' if left == 1 else 'stay'} with the stock op: {which}."


def _points(points: list[Timed]) -> str:
    made = [f"{title}:\n\n{tables.points_table(group)}\n" for title, group in tables.groups(points).items()]
    return "".join(made)


def status_region(root: Path, op: str) -> str:
    """Whether a kernel of the op serves, which, and where its evidence is."""
    if not (found := serving(op, root)):
        return "\n**Not promoted.** No kernel of this op serves: the stock torch ops do.\n\n"
    said = []
    for p in found:
        points = [each for each in timed(op, root) if each.seq == p.seq]
        link = f"[evidence](../../generated_kernels/{p.evidence}), [source](../../generated_kernels/{p.source})"
        text = f"**Promoted** for `{p.arch}`: candidate `{p.candidate[:12]}`. {_verdict(points)}"
        links = f"\n{link}, [commands](../../runs/README.md).\n\n"
        said.append("\n" + wrapped(f"{text} {_machine(evidence(p, root))}") + links)
    return "".join(said)


def points_region(root: Path, op: str) -> str:
    """All measured points; cold weights, in a CUDA graph, medians in µs."""
    if not (points := timed(op, root)):
        return "\nNothing was measured by the gates yet.\n\n"
    return "\n" + _points(points)


def ranked_region(root: Path, op: str) -> str:
    """What rankings have said of the family's points."""
    runs = tables.ranked_runs(op)
    if not runs:
        return "\nNone of this family is in [the record of rankings](../../benchmarks/ranked.json).\n\n"
    serves, made = {p.candidate[:12] for p in serving(op, root)}, []
    for run in runs:
        names = [f"`{name}`" for name in run["candidates"] if name in serves]
        what = f" {names[0]} is the promoted one." if names else ""
        made.append(f"\nRanked on {run['machine']['gpu']}, µs a call.{what}\n\n{tables.ranked_table(run)}\n")
    return "".join(made)


def bounds_region(root: Path, op: str) -> str:
    """What kernels of the op take with one stage left out, where that was measured."""
    return page.region(op, {p.candidate[:12] for p in serving(op, root)})


def index_region(root: Path) -> str:
    rows = []
    for op in sorted(REGISTRY.ops):
        by = tables.outcomes(timed(op, root))
        said = " / ".join(str(len(bins)) for bins in by.values()) if serving(op, root) else "not promoted"
        rows.append([f"[{op}]({op}.md)", said])
    return "\n" + tables.table(["op", "points that win / tie / left"], rows) + "\n"


KINDS: Mapping[str, Callable[..., str]] = {
    "bins": bins_region,
    "plain": plain_region,
    "summary": summary_region,
    "sections": sections_region,
    "status": status_region,
    "points": points_region,
    "ranked": ranked_region,
    "bounds": bounds_region,
    "index": index_region,
    "served": vllm_served.region,
    "served_headline": vllm_served.headline,
    "ranks": ranks_measured.region,
    "ranks_model": ranks_model.region,
    "staged": staged.region,
}


def main(argv: list[str]) -> int:
    """Exit 1 where --check finds a page that differs."""
    made = {path: rewritten(path.read_text(encoding="utf-8")) for path in documents()}
    made[LAYERS] = layers_measured.page()
    stale = [path for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
        if "--check" not in argv:
            path.write_text(made[path], encoding="utf-8")
    return 1 if stale and "--check" in argv else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
