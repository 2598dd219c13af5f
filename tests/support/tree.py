"""A whole run of `search` with population, restart and crossover, and its builds, kept so that it takes seconds.

    python tests/support/tree.py            builds everything anew and writes tests/data/loop_tree_builds.tar.xz

The file is a build cache as any run leaves one. What other rules, another compiler or contract have made is no hit
there: the run then builds for itself, which takes a minute and changes nothing else.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from kgen.loop.session import Ended, begin, work_on
from kgen.loop.settings import Settings
from kgen.ops import REGISTRY
from kgen.pool.local import LocalExecutor
from kgen.proposers.search import SearchProposer
from kgen.store import Run, Runs

OP = REGISTRY.get("attn_res")
BINS = (8, 64)  # two ranges, at which the static cost prefers different points
BUILDS = Path(__file__).parents[1] / "data" / "loop_tree_builds.tar.xz"
SETTINGS = Settings(
    OP.name,
    "search",
    seed=27,  # of the first sixty the one whose restart finds a leader, and whose first rounds gain nothing
    rounds=6,
    candidates=6,
    patience=9,  # it goes on behind the first right candidate
    archs=("sm_90a",),
    dims=("nano",),
    bins=BINS,
    interpret=False,
    beam=2,
    explore=0.0,
)


def grown(folder: Path, cache: Path) -> tuple[Run, Ended]:
    """The run, in `folder`/runs."""
    settings = SETTINGS.checked(OP)
    run = begin(Runs(folder / "runs"), OP, settings, "kgen propose")
    return run, work_on(run, OP, settings, SearchProposer(), cache, executor=LocalExecutor(1))


def unpack(cache: Path) -> Path:
    """The kept builds, in a new cache folder."""
    with tarfile.open(BUILDS) as kept:
        if hasattr(tarfile, "data_filter"):  # 3.11 has it from its fourth release on
            kept.extraction_filter = tarfile.data_filter
        kept.extractall(cache)  # written by this repository
    return cache


def pack(cache: Path, file: Path) -> None:
    """Results and what they name, in an order that does not depend on when they were made."""
    found: list[Path] = sorted((cache / "builds").glob("*/*.json"))
    for value in [json.loads(path.read_text(encoding="utf-8"))["value"] for path in found]:
        record = value["record"]
        names = (f"{record['object_sha256']}.o", f"{record['cubin_sha256']}.cubin", f"{value['ptx_sha256']}.ptx")
        found += [cache / "objects" / name for name in names]
    with tarfile.open(file, "w:xz", preset=9) as kept:
        for path in sorted(set(found), key=lambda p: (p.suffix, p.name)):
            kept.add(path, path.relative_to(cache), filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, ended = grown(Path(folder), Path(folder) / "cache")
        pack(Path(folder) / "cache", BUILDS)
        sys.stdout.write(f"{len(run.folders())} candidates, {ended.outcome}: {BUILDS.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
