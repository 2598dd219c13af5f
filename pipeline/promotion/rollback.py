"""Moving the pointers of a set back to what served before."""

from dataclasses import dataclass, replace

from kgen.promotion.case import Refused
from kgen.promotion.promote import event
from kgen.records import Promotion
from kgen.store.durable import DURABLE, Durable, locked, sweep
from kgen.store.kernelset import MANIFEST, KernelSet, manifest_bytes
from kgen.store.paths import SetPath


@dataclass(frozen=True)
class RolledBack:
    """The undone promotion, and which one serves each of its points now (0: the stock op)."""

    seq: int
    undone: Promotion
    now: dict[str, int]


def rollback(target: SetPath, op: str, arch: str = "", durable: Durable = DURABLE) -> RolledBack:
    """Undo the newest promotion of an op that still serves a point (on `arch`, if given). Nothing is deleted.

    Raises Refused when there is none, IntegrityError, StoreError.
    """
    root = target.require_writable()
    if not KernelSet(root).exists():
        raise Refused("rollback.none", f"{root} has no manifest: nothing to roll back")
    with locked(root):
        sweep(root)
        manifest = KernelSet(root).manifest()
        serving = set(manifest.champions.values())
        mine = [p for p in manifest.promotions if p.seq in serving and p.op == op and arch in ("", p.arch)]
        if not mine:
            raise Refused("rollback.none", f"no promoted kernel serves {op}{f' on {arch}' if arch else ''}")
        undone, seq = mine[-1], manifest.seq + 1
        now = {k: undone.previous[k] for k, s in manifest.champions.items() if s == undone.seq}
        champions = {k: now.get(k, s) for k, s in manifest.champions.items() if now.get(k, s)}
        history = (*manifest.history, event(seq, "rollback", undone))
        after = replace(manifest, seq=seq, champions=champions, history=history)
        durable.write(root / MANIFEST, manifest_bytes(after))
    return RolledBack(seq, undone, now)
