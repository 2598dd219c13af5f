"""The Makefile's set-up: what it says before it downloads anything, and what it says when it cannot go on.

Run without a package index, so nothing is downloaded here. Not covered: a set-up that succeeds (CI itself is one).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.checkout import ROOT, copy_tree


def set_up(folder: Path, **changes: str) -> tuple[int, list[str]]:
    """Exit status and stderr lines of .ci/setup, in a copy of the tree."""
    tree = copy_tree(folder / "tree")
    (tree / ".ci").mkdir()
    (tree / ".ci" / "setup").write_bytes((ROOT / ".ci" / "setup").read_bytes())
    env = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", **changes}
    command = ["bash", str(tree / ".ci" / "setup"), str(folder / "env"), "run"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"CC": "no-such-compiler"}, "apt-get install gcc libc6-dev"),
        ({"PYTHON": "no-such-python"}, "Python 3.11 or newer is needed"),
    ],
)
def test_what_is_missing_is_named_in_one_line_and_nothing_is_made(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    code, lines = set_up(tmp_path, **changes)
    assert code == 3 and len(lines) == 1 and said in lines[0]
    assert not (tmp_path / "env").exists()


def test_the_download_is_stated_first_and_a_torch_that_is_there_is_reused(tmp_path: Path) -> None:
    code, lines = set_up(tmp_path)
    told = [n for n, line in enumerate(lines) if re.search(r"downloads about \d+ MB", line)]
    failed = [n for n, line in enumerate(lines) if "pip could not install" in line]
    assert code == 3 and told and failed and told[0] < min(n for n, line in enumerate(lines) if "ERROR" in line)
    assert f"torch {torch.__version__} of {sys.executable} is reused" in lines[told[0]]
    assert f"torch=={torch.__version__}" in (tmp_path / "env" / "constraints.txt").read_text().splitlines()


def test_no_script_uses_the_package_index_by_name() -> None:
    # whoever has a mirror or an index of CPU builds configures pip, and all scripts follow
    for script in (ROOT / ".ci" / "setup", ROOT / ".ci" / "run", ROOT / "Makefile"):
        assert not re.search(r"https?://|--(?:extra-)?index-url", script.read_text())
