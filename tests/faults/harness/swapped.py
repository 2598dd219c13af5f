"""Code in this process without one defence: what an edited copy of a module defines takes the place of the originals.

Every name in kgen's modules that is bound to a function, class or plain value of the module is bound to the copy's
for the time of the block. What a table of another module holds stays as it is.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from exploits.harness.off import Off


@contextmanager
def without(off: Off) -> Iterator[None]:
    """Nothing is changed where `off` changes nothing."""
    if not off.changes:
        yield
        return
    real, weak = sys.modules[off.module], off.of(off.module)
    changed: list[tuple[ModuleType, str, Any]] = []
    mine = {id(v): n for n, v in vars(real).items() if getattr(v, "__module__", "") == off.module}
    try:
        for module in [m for n, m in list(sys.modules.items()) if n.split(".")[0] == "kgen" and m is not None]:
            for name, value in list(vars(module).items()):
                if id(value) in mine or (module is real and name.isupper()):
                    changed.append((module, name, value))
                    setattr(module, name, getattr(weak, mine.get(id(value), name)))
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)
