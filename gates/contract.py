"""The version of the gates' rules, and the faults that they are tried on."""

GATE_CONTRACT = 1  # raised when a rule or a tolerance changes: older evidence is then stale
DEFECTS = ("tile_scale", "drop_last_k")  # planted in builds of a candidate: the model gate must refuse every one
