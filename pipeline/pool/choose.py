"""Which pool a run uses: this machine, unless Ray or the address of a cluster is asked for."""

import os
from collections.abc import Mapping

from kgen.pool.base import Executor
from kgen.pool.dispatch import PoolError, Say
from kgen.pool.local import LocalExecutor
from kgen.pool.remote import RemoteExecutor

EXECUTORS = ("local", "ray")


def choose(
    name: str = "",
    address: str = "",
    workers: int = 0,
    say: Say = lambda line: None,
    env: Mapping[str, str] = os.environ,
) -> Executor:
    """`name`: local or ray; an address chooses ray. Without either: KGEN_EXECUTOR and KGEN_RAY_ADDRESS.

    Raises ValueError for an unknown name, NoRay, and PoolError when no node can be used.
    """
    address = address or ("" if name == "local" else env.get("KGEN_RAY_ADDRESS", ""))
    name = name or ("ray" if address else env.get("KGEN_EXECUTOR", "") or "local")
    if name not in EXECUTORS:
        raise ValueError(f"unknown executor {name!r}; known: {', '.join(EXECUTORS)}")
    if name == "local":
        if address:
            raise ValueError("--ray-address goes with --executor ray")
        return LocalExecutor(workers)
    from kgen.pool.ray_nodes import RayNodes

    nodes = RayNodes(address, workers, say)
    found = nodes.alive()
    if not found:
        nodes.close(at_once=True)
        raise PoolError("no node of the cluster can be used: the lines above say why")
    isolation = " and ".join(sorted({n.isolation for n in found} - {""}))
    return RemoteExecutor(nodes, isolation, say)
