"""Gate `full-model-eval` on the decode model: candidates of any ops in their seats, against stock and float64.

    result = modeleval.run(ops, artefacts, mutants, cache=folder, device="cuda")

Stock, candidate, the switched-off candidate, float64 and each mutant perform the same exercises (plan.py says which and
how long they take) in fresh processes of their own; the judge alone sees them together. Limits: limits.py.

    fullmodel.pass           all rules hold, and every mutant was refused
    fullmodel.logits         farther from float64 than stock: over all rows, in columns, in a sequence; not finite
    fullmodel.long_context   the same behind a long context, or fewer answers behind a long prompt
    fullmodel.drift          recurrent states leave float64 faster than stock's
    fullmodel.agreement      fewer greedy tokens right, or free generation departs oftener than stock from itself
    fullmodel.speculative    decoding with drafts departs from plain decoding oftener than in stock
    fullmodel.tasks          the small model may answer a point less of what stock answers
    fullmodel.constrained    an output under a grammar does not parse, or no longer ends
    fullmodel.sampling       tokens are drawn from another distribution
    fullmodel.attestation    seats or launches are not as built; error: the profiler sees nothing
    fullmodel.insensitive    error: a mutant passed, or could not be tried: the gate proves nothing
    fullmodel.incomplete     error: something that a pass claims was not measured: weights, a baseline, a record, a seat
    fullmodel.crash          fail: the candidate's process died or hung; error: one of the other processes did
    fullmodel.no_gpu, fullmodel.other_gpu   skip, with the next command

Not covered: ranks that exchange data (peers hold zeros), serving engines of others, real checkpoints.
"""

from kgen.gates.modeleval.gate import GATE, run

__all__ = ["GATE", "run"]
