from faults.harness.case import Shown

SHOWN = (
    Shown(9, "source/compiler_patched", "compile", "screen.patch"),
    Shown(9, "object/replaces_event_timing", "compile", "audit.symbol"),
    Shown(9, "source/clock_imported", "compile", "screen.import"),
)
