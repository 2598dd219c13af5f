"""The GPU side: loads audited artefacts only, returns output bytes and times, knows no answers.

A judge starts it through `kgen.gates.runner.host`; every job is one fresh process (`__main__`):

    with host.running(kind, job, deadline=120) as outcome:   # kind: a key of __main__.KINDS
        outcome.status      done | fault | crashed | hung | error
        outcome.records     JSON values that the job wrote as it went (also when it died later)
        outcome.tensor(ref) a tensor that the job left, from its raw bytes

    job.spec(artefact) -> LoadSpec     what to load; job.stock_spec(problem) is the stock op in a candidate's place
    rank.rank(specs)                   quick timing of many artefacts, for proposers that search
"""
