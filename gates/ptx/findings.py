"""What a run found wrong: frozen records, one per kind, instruction and tensor, with a count of the rest."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MAX_FINDINGS = 200


class Kind(enum.StrEnum):
    OUT_OF_BOUNDS = "out-of-bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised"
    RACE = "race"
    ASYNC = "async-not-waited"  # touches what an asynchronous copy may still be moving
    CLUSTER = "cluster-exit"  # shared memory of a CTA that may have ended
    PROXY = "proxy-fence-missing"  # asynchronous work on what a thread wrote: memory, or registers (wgmma.fence)
    PDL = "pdl-wait-missing"
    INPUT_WRITTEN = "input-written"
    BARRIER = "barrier-participation"
    DEADLOCK = "deadlock"
    OVERFLOW = "address-overflow"
    TRAP = "trap"
    MBARRIER = "mbarrier"


@dataclass(frozen=True)
class Finding:
    """One kind of fault at one instruction. `index`: of the element in the tensor, () where it has none.

    `address`: as the program had it. `times`: how often it was seen in all threads of the run.
    """

    kind: Kind
    message: str
    kernel: str
    instruction: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int = 0
    tensor: str = ""
    index: tuple[int, ...] = ()
    times: int = 1

    def __str__(self) -> str:
        where = f"{self.tensor}{list(self.index)}" if self.index else self.tensor
        at = f" at {where} (0x{self.address:x})" if self.tensor else ""
        place = f"{self.kernel[:60]} line {self.line}: `{self.instruction}`, block {self.block}, thread {self.thread}"
        again = f" [{self.times} times]" if self.times > 1 else ""
        return f"{self.kind}: {self.message}{at}; {place}{again}"


@dataclass
class Log:
    """Findings of a run, in the order of their first sight."""

    _found: dict[tuple[str, str, int, str], Finding] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        key = (finding.kind.value, finding.kernel, finding.line, finding.tensor)
        if before := self._found.get(key):
            self._found[key] = replace(before, times=before.times + finding.times)
        elif len(self._found) < MAX_FINDINGS:
            self._found[key] = finding

    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())

    def counts(self) -> Mapping[str, int]:
        """Kind -> different findings."""
        return {k.value: n for k in Kind if (n := sum(f.kind is k for f in self._found.values()))}
