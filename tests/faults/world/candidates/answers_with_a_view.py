from faults.harness.case import Shown

SHOWN = (
    Shown(11, "numbers/passthrough", "unit-numeric", "numeric.error"),
    Shown(11, "numbers/writes_its_input", "unit-numeric", "numeric.inputs_written"),
    Shown(11, "source/torch_does_the_work", "compile", "screen.import"),
)
