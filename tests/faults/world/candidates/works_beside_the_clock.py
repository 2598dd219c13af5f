from faults.harness.case import Shown

SHOWN = (
    Shown(13, "launcher/other_stream", "compile", "audit.launcher"),
    Shown(13, "launcher/works_later", "compile", "audit.launcher"),
    Shown(13, "source/background_thread", "compile", "screen.import"),
)
