from faults.harness.case import Shown

SHOWN = (
    Shown(18, "source/torch_does_the_work", "compile", "screen.import"),
    Shown(18, "launches/never_launches", "full-model-eval", "fullmodel.attestation"),
)
