"""The `kgen` command."""
