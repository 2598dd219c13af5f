"""Fixtures of more than one test file."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # as many processes as cores run tests: more threads only wait for each other


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, with the runs, the set and the cache inside and no API key."""
    for name in ("runs", "set", "cache"):
        monkeypatch.setenv(f"KGEN_{name.upper()}", str(tmp_path / name))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
