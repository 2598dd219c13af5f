"""What a piece of torch code would launch on a GPU, counted on a CPU: kernels, views, and the bytes that they move.

    with Tally() as tally: step(ids, state)
    tally.kernels, tally.views, tally.bytes

A call of the dispatcher that returns a view is bookkeeping; one that only allocates is nothing; any other is one
kernel, which reads its inputs and writes its outputs (of a gathered source, as much as it returns). Works on `meta`
tensors too. Not counted: that some calls are several kernels (sorting, nonzero), waits for the device, Python's time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}
GATHERS = {"index", "index_select", "gather", "embedding"}


class Tally(TorchDispatchMode):
    """Counts while it is entered; may be entered again."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.views = self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        returns = func._schema.returns
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns) or name == "_unsafe_view":
            self.views += 1
        elif name not in ALLOCATES:
            self.kernels += 1
            written = _bytes(out)
            self.bytes += 2 * written if name in GATHERS else _bytes([args, kwargs]) + written
        return out


def _bytes(value: object) -> int:
    """Distinct elements: what an expanded tensor repeats is read once."""
    tensors = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return sum(t.element_size() * _distinct(t) for t in tensors)


def _distinct(tensor: torch.Tensor) -> int:
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count


def counted(run: Callable[[], object]) -> Tally:
    with Tally() as tally:
        run()
    return tally
