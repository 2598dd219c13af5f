"""Fixtures of more than one test file, and the order of the files."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from support import durations

# As many processes as cores run tests: more threads, here or in what is started here, only wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long the first drawn text takes says something of the machine: tables of characters are made and kept then.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker is left with one of them at the end."""
    seconds = durations.known()
    items.sort(key=lambda item: -seconds.get(item.path.name, 0.0))


def pytest_collection_finish() -> None:
    """What collecting has made stays until the end: no collector need look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def plain_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No certificates: a client of an endpoint without TLS reads them all the same, most of its CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, with the runs, the set and the cache inside and no API key."""
    for name in ("runs", "set", "cache"):
        monkeypatch.setenv(f"KGEN_{name.upper()}", str(tmp_path / name))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of all workers of this session. The first test to want a build makes it, really; whoever tests builds or
    the cache itself has one of its own."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def kit_cache(kept: Path) -> Path:
    """The same; its kit/ keeps packed libraries, by content and checked."""
    (kept / "kit").mkdir(exist_ok=True)
    return kept
