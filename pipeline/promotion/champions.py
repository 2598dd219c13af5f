"""The kernels in place, as baselines: what a new candidate has to beat wherever one serves already.

champions(target, builds, blobs) -> build records whose objects are then in the cache
"""

from collections.abc import Sequence
from pathlib import Path

from kgen.gates.compile import same_code
from kgen.records import BuildRecord
from kgen.store.cache import OBJECT_SUFFIX, Blobs
from kgen.store.kernelset import KernelSet


def champions(target: Path, builds: Sequence[BuildRecord], blobs: Blobs) -> tuple[BuildRecord, ...]:
    """The serving build at each of these problems, in order; none where the stock op serves, or the very same kernel.

    Raises IntegrityError for a damaged set, StoreError for an unreadable one.
    """
    kernels = KernelSet(target)
    manifest, found = kernels.manifest(), []
    records: dict[int, dict[str, BuildRecord]] = {}
    for build in (b for b in builds if not b.defect):
        champion = manifest.champion(build.problem.key)
        if champion is None or champion.objects[build.problem.key] == build.object_sha256:
            continue
        if champion.seq not in records:
            records[champion.seq] = {r.problem.key: r for r in kernels.builds(champion)}
        record = records[champion.seq].get(build.problem.key)
        if record is not None and not same_kernel(record, build):
            blobs.put(kernels.object(record.object_sha256), OBJECT_SUFFIX)
            found.append(record)
    return tuple(found)


def same_kernel(a: BuildRecord, b: BuildRecord) -> bool:
    """Whether two builds are one candidate's, with the same machine code and launches: no rivals.

    Their objects may differ: a builder's next release may write other names around the same kernels.
    """
    return a.candidate == b.candidate and not same_code(a, b)
