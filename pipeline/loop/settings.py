"""What a run was asked to do. Stored in run.json, so that `resume` needs nothing else.

Not covered: where things are kept (paths belong to the machine, not to the run), and keys of endpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kgen.contract.op import Op
from kgen.records import RecordError, from_json, to_json
from kgen.records.codec import OPTIONAL
from kgen.store.errors import IntegrityError

ARCHS = ("sm_90a", "sm_103a")
FINALISTS = 2
MINUTES = 60.0
BEAM, EXPLORE, PARALLEL = 4, 0.25, 4
# proposer -> (rounds, candidates): a search lays everything out at once, a writer learns from each verdict
BUDGETS: Mapping[str, tuple[int, int]] = {"search": (1, 24), "replay": (1, 24), "mcp": (24, 24)}
WRITER_BUDGET = (6, 6)
MODELLED_BUDGET = (6, 24)  # of a search that learns from each round


@dataclass(frozen=True)
class Settings:
    """`candidates` is the most in the whole run; `minutes` and `max_usd` bound it too (0: no cost limit),
    and so do `max_gpu_seconds` of leases on GPUs (0: no limit).

    The matrix: `archs` x `dims` x `bins` (empty: all that the op serves, and the small dims), at one value of each of
    the op's other axes: `axes`, else the default. Points that the op refuses are no part of it. The first arch, the
    first dims and the pack's quick bins make the quick tier, which the best `finalists` leave for the full matrix.
    """

    SCHEMA: ClassVar[str] = "kgen.settings/1"
    op: str
    proposer: str
    seed: int = 0
    rounds: int = 1
    candidates: int = 24
    minutes: float = MINUTES
    max_usd: float = 0.0
    max_gpu_seconds: float = 0.0
    archs: tuple[str, ...] = ARCHS
    dims: tuple[str, ...] = ()
    bins: tuple[int, ...] = ()
    axes: Mapping[str, str] = field(default_factory=dict)  # only those that are not at their default
    finalists: int = FINALISTS
    replay: str = ""  # the run folder that `replay` reads
    mailbox: str = ""  # the folder that the mailbox lies in, "": the run folder
    interpret: bool = True  # without a GPU: check numbers in the PTX interpreter
    unsafe: bool = False  # built without a sandbox, on explicit request; never promotable
    beam: int = BEAM  # members of the population that are built on
    explore: float = EXPLORE  # share of asks, from the second round on, that start afresh
    parallel: int = PARALLEL  # questions at once, to a proposer that can answer so
    patience: int = 0  # end after so many rounds without gain (0: no such rule)
    search: str = ""  # how `search` and `tune` choose points: tpe, nsga or random ("": samples and their neighbours)
    counters: bool = field(default=False, metadata=OPTIONAL)  # read hardware counters of the finalists
    stop_roofline: float = 0.0  # end when a candidate reaches this share of the roofline (0: no such rule)

    def checked(self, op: Op) -> "Settings":
        """With the matrix filled in. Raises ValueError (one line) for what this op does not have."""
        dims = tuple(dict.fromkeys(op.own_name(d) for d in self.dims)) or (*op.served, op.pack.small)
        bins = tuple(sorted(set(self.bins))) or op.pack.bins
        whys = {tokens: [refusal(op, name, tokens, self.axes) for name in dims] for tokens in bins}
        left = tuple(tokens for tokens in bins if not all(whys[tokens]))
        if not left:
            raise ValueError(f"no point is left: {whys[bins[0]][0]}")
        if unknown := [a for a in self.archs if a not in ARCHS]:
            raise ValueError(f"unknown architecture {unknown[0]!r}; known: {', '.join(ARCHS)}")
        for name, value in (("rounds", self.rounds), ("candidates", self.candidates), ("minutes", self.minutes)):
            if not value > 0:
                raise ValueError(f"--{name} must be more than 0, is {value}")
        for name, value in (("beam", self.beam), ("parallel", self.parallel)):
            if value < 1:
                raise ValueError(f"--{name} must be at least 1, is {value}")
        for name, value in (("explore", self.explore), ("stop-roofline", self.stop_roofline)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"--{name} is a share from 0 to 1, not {value}")
        if self.patience < 0:
            raise ValueError(f"--patience must not be negative, is {self.patience}")
        for name, value in (("max-usd", self.max_usd), ("max-gpu-seconds", self.max_gpu_seconds)):
            if value < 0:
                raise ValueError(f"--{name} must not be negative, is {value}")
        archs = tuple(dict.fromkeys(self.archs)) or ARCHS
        axes = {name: value for name, value in self.axes.items() if value != op.axes[name][0]}
        matrix = {"dims": list(dims), "bins": list(left), "archs": list(archs), "axes": axes}
        return from_json(Settings, {**to_json(self), **matrix})

    def remarks(self, op: Op) -> tuple[str, ...]:
        """What `checked` makes of these settings and a user should know; one line each."""
        said = [
            f"--dims {name}: {op.name} has the sizes of {op.own_name(name)} there; that is what is built and proven"
            for name in dict.fromkeys(self.dims)
            if op.own_name(name) != name
        ]
        full = self.checked(op)
        left_out = [n for n in sorted(set(self.bins)) or op.pack.bins if n not in full.bins]
        if left_out:
            bins, why = ", ".join(map(str, left_out)), refusal(op, full.dims[0], left_out[0], full.axes)
            said.append(f"left out: token bins {bins} ({why})")
        return tuple(said)

    @property
    def per_round(self) -> int:
        """How many candidates one round asks for."""
        return -(-self.candidates // self.rounds)


def refusal(op: Op, dims: str, tokens: int, axes: Mapping[str, str]) -> str:
    """Why the op has no such point, "" where it has one. Raises ValueError (one line) for unknown names."""
    known = dims in op.names() and tokens in op.pack.bins and all(v in op.axes.get(k, ()) for k, v in axes.items())
    try:
        op.problem(dims, tokens, ARCHS[0], axes)
    except ValueError as error:
        if not known:
            raise
        return str(error)
    return ""


def read_settings(stored: Mapping[str, Any], where: str) -> Settings:
    """The settings in a run.json. Raises IntegrityError."""
    try:
        return from_json(Settings, dict(stored))
    except RecordError as error:
        raise IntegrityError(f"{where}: {error}") from None
