"""A ranked candidate from source to one file and back: really built, packed, read, refused without GPUs."""

import json
import lzma
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from support.builds import CANDIDATES, shared

from kgen.contract.ranks import AXIS
from kgen.gates.kit_wheels import HERE
from kgen.gates.ranks.__main__ import JOB, MISSING, lacking
from kgen.gates.ranks.build import build_all
from kgen.gates.ranks.job import OPS, Carried
from kgen.gates.ranks.pack import ENTRY, pack
from kgen.records import Candidate, Origin, from_json, sha256_bytes

OP = OPS["ranked_allreduce_residual"]


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        table = json.loads(archive.read("kit.json"))
        blobs = {f["path"]: (f["xz"], archive.read(f"blobs/{f['blob']}")) for f in table["files"]}
    return table, {name: lzma.decompress(data) if xz else data for name, (xz, data) in blobs.items()}


def test_a_pack_holds_the_audited_objects_and_their_mailboxes_and_runs_only_where_there_are_gpus(
    tmp_path: Path,
) -> None:
    source = (CANDIDATES / "sum_over_ranks.py").read_text()
    problems = [OP.problem("nano", tokens, "sm_90a", {AXIS: "2"}) for tokens in (1, 2)]
    built = build_all(OP, Candidate(OP.name, source, Origin("file", {})), problems, shared(), tmp_path)
    (box,) = built[1][0].record.symmetric
    assert (box.name, box.shape, box.parities, box.sentinel) == ("box", (2, 2, 256), 2, 0x8000_0000)
    file = pack(built, tmp_path / "ranks.pyz", tmp_path, pythons=(HERE,), flavours=("cu12",))
    table, files = unpacked(file.path)
    assert table["entry"] == ENTRY and file.bytes == file.path.stat().st_size
    carried = [from_json(Carried, value) for value in json.loads(files[JOB])]
    assert carried == [each for each, _ in built]
    for each in carried:
        sha256 = each.record.object_sha256
        assert sha256_bytes(files[f"objects/{sha256}.o"]) == sha256
    assert {"lib/kgen/gates/ranks/worker.py", "lib/kgen/gates/ranks/timed.py"} <= set(files)
    assert not any(name.startswith(("lib/kgen/gates/ptx", "lib/kgen/gates/ranks/build")) for name in files)
    done = subprocess.run([sys.executable, str(file.path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == MISSING and done.stderr.startswith("kgen kit: no CUDA GPU"), done.stderr


def test_a_host_with_fewer_gpus_says_so() -> None:
    assert lacking(99, ["sm_90a"]).startswith("needs 99 GPUs of one host, here are ")
