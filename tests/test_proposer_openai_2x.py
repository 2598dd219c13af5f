"""The table of endpoint faults under the oldest supported openai release, installed aside in a cached folder."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLES = [str(HERE / f"test_proposer_{name}.py") for name in ("openai_faults", "responses", "secrets")]
# Of the leak scanner the cases that the two releases' HTTP libraries could treat differently.
CHOSEN = "not nothing_that_leaves or (userinfo-whole and echoes)"
OTHER_MAJOR_ALREADY_RUNS = "KGEN_TEST_OPENAI_MAJOR"


def oldest_supported() -> str:
    """The lower bound in kgen's own metadata."""
    for requirement in importlib.metadata.requires("kgen") or ():
        if requirement.startswith("openai"):
            found = re.search(r">=\s*([\d.]+)", requirement)
            if found:
                return found[1] if found[1].count(".") == 2 else found[1] + ".0"
    raise AssertionError("kgen's metadata has no lower bound for openai")


@pytest.fixture(scope="module")
def installed() -> Path:
    """The release in a folder of its own, kept between runs; skipped where no package registry can be reached."""
    version = oldest_supported()
    python = f"py{sys.version_info[0]}{sys.version_info[1]}"
    user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"kgen-tests-{user}" / f"openai-{version}-{python}"
    marker = folder / "complete"
    if not marker.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--upgrade", "--target", str(folder)]
        done = subprocess.run([*command, f"openai=={version}"], capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            pytest.skip(f"openai {version} cannot be installed here: {done.stderr.strip()[-200:]}")
        marker.touch()
    return folder


@pytest.mark.skipif(OTHER_MAJOR_ALREADY_RUNS in os.environ, reason="this is the inner run")
def test_the_oldest_supported_openai_passes_the_same_table(installed: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed), OTHER_MAJOR_ALREADY_RUNS: "2."}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *TABLES]
    done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 100
