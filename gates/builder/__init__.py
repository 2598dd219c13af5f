"""Untrusted side of a build: runs a candidate in the sandbox and leaves an object, PTX and cubin.

`pool` is the judge's end; `server`, `job` and `defects` run inside the sandbox, where of kgen only this folder and
`sandbox` exist.
"""
