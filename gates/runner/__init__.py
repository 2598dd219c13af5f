"""The GPU side: loads audited artefacts only, returns output bytes and times, knows no answers."""
