"""The judge: build sandbox, artefact audit, the four gates, the runner, timing."""
