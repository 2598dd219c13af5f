"""Evidence becomes part of a run: evidence and raw samples in the candidate's folder, results of gates, verdict.

    ledger(run, op) -> Ledger         what this run knows of itself, to check evidence against
    take_in(run, ingested) -> Verdict the files of one candidate; call with the run's lock held

The same for evidence from a kit and for gates that ran here. Not covered: checking it (kgen.gates.ingest does).
"""

from kgen.contract.op import Op
from kgen.gates.ingest import Ingested, Ledger
from kgen.promotion.gather import EVIDENCE, RAW
from kgen.records import GATES, Verdict
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import json_bytes
from kgen.store.runs import Run


def ledger(run: Run, op: Op) -> Ledger:
    """Raises IntegrityError for a damaged run."""
    built = {f.candidate().id: f.builds() for f in run.folders()}
    return Ledger(op, run.id, run.key(), {c: builds for c, builds in built.items() if builds})


def take_in(run: Run, ingested: Ingested) -> Verdict:
    """Write evidence, raw samples, results and verdict, in this order. Raises StoreError, ValueError."""
    folder = run.folder(ingested.candidate[:12])
    if ingested.raw:
        folder.write(RAW, ingested.raw)
    else:
        folder.file(RAW).unlink(missing_ok=True)
    folder.write(EVIDENCE, json_bytes(ingested.evidence))
    for result in ingested.results:
        folder.write_result(result)
    return judge(folder)


def judge(folder: CandidateFolder) -> Verdict:
    """The verdict from the stored results, written down."""
    results = tuple(r for gate in GATES if (r := folder.result(gate)) is not None)
    verdict = Verdict(folder.candidate().id, results)
    folder.write_verdict(verdict)
    return verdict
