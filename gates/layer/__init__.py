"""One decode layer as a chain of ops, timed whole: `kgen bench-layer`, or `python -m kgen.gates.layer` beside torch.

    run.run(jobs, out, ...)        points one after the other, each in a fresh process; the record is resumable
    measure.measure(job)           one point: build, compare with float64, time, attribute
    markdown.markdown(record)      the record as a page

Not a gate and no evidence: what it loads was proven before, and is loaded as a server would load it.
"""
