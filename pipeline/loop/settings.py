"""What a run was asked to do. Stored in run.json, so that `resume` needs nothing else.

Not covered: where things are kept (paths belong to the machine, not to the run), and keys of endpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kgen.contract.op import Op
from kgen.records import RecordError, from_json, to_json
from kgen.store.errors import IntegrityError

ARCHS = ("sm_90a", "sm_103a")
FINALISTS = 2
MINUTES = 60.0
# proposer -> (rounds, candidates): a search lays everything out at once, a writer learns from each verdict
BUDGETS: Mapping[str, tuple[int, int]] = {"search": (1, 24), "replay": (1, 24)}
WRITER_BUDGET = (6, 6)


@dataclass(frozen=True)
class Settings:
    """`candidates` is the most in the whole run; `minutes` and `max_usd` bound it too (0: no cost limit).

    The matrix: `archs` x `dims` x `bins` (empty: all that the op serves, and the small dims). The first arch, the first
    dims and the pack's quick bins make the quick tier, which the best `finalists` leave for the full matrix.
    """

    SCHEMA: ClassVar[str] = "kgen.settings/1"
    op: str
    proposer: str
    seed: int = 0
    rounds: int = 1
    candidates: int = 24
    minutes: float = MINUTES
    max_usd: float = 0.0
    archs: tuple[str, ...] = ARCHS
    dims: tuple[str, ...] = ()
    bins: tuple[int, ...] = ()
    finalists: int = FINALISTS
    replay: str = ""  # the run folder that `replay` reads
    unsafe: bool = False  # built without a sandbox, on explicit request; never promotable

    def checked(self, op: Op) -> "Settings":
        """With the matrix filled in. Raises ValueError (one line) for what this op does not have."""
        dims = self.dims or (*op.pack.served, op.pack.small)
        bins = tuple(sorted(set(self.bins))) or op.pack.bins
        for name in dims:
            for tokens in bins:
                op.problem(name, tokens, self.archs[0] if self.archs else "")
        if unknown := [a for a in self.archs if a not in ARCHS]:
            raise ValueError(f"unknown architecture {unknown[0]!r}; known: {', '.join(ARCHS)}")
        for name, value in (("rounds", self.rounds), ("candidates", self.candidates), ("minutes", self.minutes)):
            if not value > 0:
                raise ValueError(f"--{name} must be more than 0, is {value}")
        if self.max_usd < 0:
            raise ValueError(f"--max-usd must not be negative, is {self.max_usd}")
        archs = tuple(dict.fromkeys(self.archs)) or ARCHS
        return from_json(Settings, {**to_json(self), "dims": list(dims), "bins": list(bins), "archs": list(archs)})

    @property
    def per_round(self) -> int:
        """How many candidates one round asks for."""
        return -(-self.candidates // self.rounds)


def read_settings(stored: Mapping[str, Any], where: str) -> Settings:
    """The settings in a run.json. Raises IntegrityError."""
    try:
        return from_json(Settings, dict(stored))
    except RecordError as error:
        raise IntegrityError(f"{where}: {error}") from None
