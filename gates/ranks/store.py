"""How the ranks of a part meet: a key-value store that the host serves on loopback, and word of a lost rank.

The host serves it, and not rank 0, so that the death of any rank leaves it in place. Waits here end at once when the
host says that a rank is lost; a wait inside a kernel cannot be ended this way (its own bound ends it, or the host).
"""

import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

LOST = "lost"
POLL_SECONDS = 0.0005
MEET_SECONDS = 60.0  # of one barrier: the host's deadline comes first
CONNECT = timedelta(seconds=30)
ADDRESS = "127.0.0.1"


class PeerLost(RuntimeError):
    """Another rank is gone, or did not come; one line that says which and how."""


def serve() -> Any:
    """The host's end; `.port` is what ranks connect to."""
    return TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False, timeout=CONNECT)


class Meeting:
    """A rank's end. Every rank must make the same calls in the same order."""

    def __init__(self, port: int, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.store: Any = TCPStore(ADDRESS, port, is_master=False, timeout=CONNECT)
        self._number = 0

    def exchange(self, value: str) -> list[str]:
        """The values of all ranks, in rank order, when all have come. Raises PeerLost."""
        self._number += 1
        keys = [f"{self._number}/{rank}" for rank in range(self.ranks)]
        self.store.set(keys[self.rank], value or " ")
        until = time.monotonic() + MEET_SECONDS
        while not self.store.check(keys):
            if self.store.check([LOST]):
                raise PeerLost(self.store.get(LOST).decode())
            if time.monotonic() > until:
                missing = [r for r, key in enumerate(keys) if not self.store.check([key])]
                raise PeerLost(f"rank {missing[0] if missing else '?'} did not come within {MEET_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        return [self.store.get(key).decode().strip() for key in keys]

    def barrier(self) -> None:
        self.exchange("")

    def complaints(self, said: str) -> list[str]:
        """What each rank that has a complaint says; empty when all are well. All ranks get the same answer."""
        return [f"rank {rank}: {text}" for rank, text in enumerate(self.exchange(said[:2000])) if text]
