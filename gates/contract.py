"""The version of the gates' rules. Raise it when a rule or a tolerance changes: older evidence is then stale."""

GATE_CONTRACT = 1
