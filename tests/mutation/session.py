"""A pytest session that has collected and can run single tests, in this process or in a fork of it.

    Session(files)                     collects
    session.passes(items, seconds)     whether they all pass, given each one's time; the first failure ends it

Builds are taken from a memo on disk, keyed by all that goes into them: no mutated module has a part in a build.
Not covered: tests in other processes than the one that runs this; those see the original source.
"""

import functools
import hashlib
import os
import pickle
import signal
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from mutation.areas import ROOT, SKIPPED

WORK = Path(tempfile.gettempdir()) / f"kgen-mutation-{os.getuid()}"
OPTIONS = ["--import-mode=importlib", "--strict-markers", "-m", "not deep and not gpu", "-s"]
PLUGINS = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:xdist", "-p", "no:logging"]


class Outcomes:
    """Hears of each test's result."""

    def __init__(self) -> None:
        self.failed = False
        self.skipped = False
        self.seconds = 0.0  # of CPU, its processes' included: independent of what else runs here

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed
        self.skipped |= report.skipped


class Session:
    """Collects these files once; `items` by node id."""

    def __init__(self, files: Iterable[Path]) -> None:
        phases = [Phase.explicit, Phase.generate]  # a failure need not be made small
        settings.register_profile(
            "mutation",
            derandomize=True,
            database=None,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutation")
        arguments = [*OPTIONS, *PLUGINS, "-o", "addopts=", "--rootdir", str(ROOT), *map(str, files)]
        arguments += [word for name in SKIPPED for word in ("--deselect", name)]
        self.config = _configured(arguments)
        self.outcomes = Outcomes()
        self.config.pluginmanager.register(self.outcomes)
        self.session = pytest.Session.from_config(self.config)
        self.config.hook.pytest_sessionstart(session=self.session)
        self.session.perform_collect()
        self.items = {item.nodeid: item for item in self.session.items}
        remember_builds()

    def own_folder(self, folder: Path) -> None:
        """Temporary files of the tests go there: for a fork, which shares its parent's."""
        factory: Any = self.config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = folder

    def run(self, item: pytest.Item, after: pytest.Item | None) -> Outcomes:
        now = self.outcomes
        now.failed = now.skipped = False
        began = os.times()
        self.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        now.seconds = sum(os.times()[:4]) - sum(began[:4])
        return now

    def passes(self, names: Sequence[str], seconds: Sequence[float]) -> bool:
        """A test that takes ten times as much CPU time and 5 s more ends the process (SIGPROF)."""
        items = [self.items[name] for name in names]
        for item, after, usual in zip(items, [*items[1:], None], seconds, strict=True):
            signal.setitimer(signal.ITIMER_PROF, 10 * usual + 5)
            if self.run(item, after).failed:
                return False
        signal.setitimer(signal.ITIMER_PROF, 0)
        return True


def _configured(arguments: list[str]) -> pytest.Config:
    from _pytest.config import _prepareconfig

    config = _prepareconfig(arguments)
    config._do_configure()
    return config


def remember_builds() -> None:
    """From now on a build that was made before, here or in another process, is read instead."""
    from kgen.gates.builder.outcome import BuildFailure, Built
    from kgen.gates.builder.pool import Builder
    from kgen.gates.builder.protocol import Signature

    build = Builder.build

    @functools.wraps(build)
    def remembered(self: Builder, source: str, signature: Signature, defect: str = "") -> Built | BuildFailure:
        limits = vars(self._limits), self._wall
        text = repr((source, signature.to_json(), defect, limits, type(self.level).__name__))
        path = WORK / "builds" / hashlib.sha256(text.encode()).hexdigest()
        if path.exists():
            got: Built | BuildFailure = pickle.loads(path.read_bytes())
            return got
        got = build(self, source, signature, defect)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(f".{os.getpid()}").write_bytes(pickle.dumps(got))
        path.with_suffix(f".{os.getpid()}").rename(path)
        return got

    Builder.build = remembered  # type: ignore[method-assign]
