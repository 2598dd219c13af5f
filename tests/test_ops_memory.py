"""No reference needs more than 16 GB at the model's own widths: each runs alone, and its peak memory is what it took.

Behind `make deep`: the widest bin of every op at TP8 takes minutes on a CPU.
"""

import json
import subprocess
import sys

import pytest

from kgen.ops import REGISTRY

LIMIT_GB = 16.0
SECONDS = 1500
RUN = """
import json, resource, sys
import torch
from kgen.ops import REGISTRY
torch.set_num_threads(2)
op = REGISTRY.get(sys.argv[1])
problem = op.problem("k3-tp8", op.pack.bins[-1], "")
values = op.inputs(problem, op.families[0].name, 1, "cpu")
for rounded in (False, True):
    op.reference(problem, values, rounded=rounded)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9))
"""


@pytest.mark.deep
@pytest.mark.parametrize("name", REGISTRY.ops)
def test_references_and_their_inputs_fit(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUN, name], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
    peak = json.loads(done.stdout)
    print(f"{name}: {peak:.2f} GB")
    assert peak < LIMIT_GB
