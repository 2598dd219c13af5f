"""Where the gates run: processes of this machine, or the nodes of a Ray cluster. See docs/scale.md."""
