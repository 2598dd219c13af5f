"""Candidates of several ranks on the GPUs of one host: a process a rank, memory that all reach, one judge over all.

    build.py       source -> audited objects, with the symmetric buffers that they declare
    transport.py   memory that every rank has and all can reach; store.py: how ranks meet and learn of a loss
    worker.py      one rank's process; check.py, endure.py, timed.py, baselines.py: what it runs there
    host.py        starts the ranks, watches them, ends them all when one is lost
    judge.py       stacks what the ranks left and compares; plan.py: which parts, in which order
    pack.py        one file for a GPU host; `python -m kgen.gates.ranks --job FOLDER --out FILE` runs what is in it

Not covered: several hosts, multicast of any kind (refused), other processes on the GPUs.
"""
