"""Untrusted side of a build: runs a candidate in the sandbox and leaves an object, PTX and cubin."""
