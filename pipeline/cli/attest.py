"""Statements about evidence, as commands read and write them: beside evidence files, and of a whole set.

attested(documents, signers)     of evidence files: those that lie beside them, checked
keep(run, statements)            into the run's folder
state(place, findings, out, key) of the kernels that serve in a set
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kgen.cli import boundary, output

if TYPE_CHECKING:
    from kgen.promotion import Finding
    from kgen.store import Run, SetPath

FOLDER = "statements"  # inside a run


@dataclass(frozen=True)
class Attested:
    """A statement that fits its evidence; `signature` and `signer` are empty where nobody signed it, or none asked."""

    statement: bytes
    signature: bytes = b""
    signer: str = ""


def attested(documents: Mapping[str, bytes], signers: str) -> list[Attested]:
    """Raises Refusal for a statement that is not of this evidence, or not signed as asked for; Missing where signatures
    cannot be checked."""
    from kgen.gates.ingest import Refusal, read
    from kgen.gates.statement import StatementError, beside, check

    found = []
    for name, data in documents.items():
        path = beside(Path(name))
        if not path.is_file():
            if signers:
                raise Refusal("foreign", f"{name} has no statement {path}: --signers asks for a signed one")
            continue
        statement = path.read_bytes()
        try:
            check(str(path), statement, [part.evidence for part in read(name, data)])
        except StatementError as error:
            raise Refusal("altered", str(error)) from None
        found.append(_signed(path, statement, signers))
    return found


def _signed(path: Path, statement: bytes, signers: str) -> Attested:
    from kgen.gates.ingest import Refusal
    from kgen.gates.ssh_signatures import SUFFIX, SignatureError, Unavailable, signer

    signature = path.with_name(path.name + SUFFIX)
    if not signature.is_file():
        if signers:
            raise Refusal("foreign", f"{path} is not signed: --signers asks for it")
        return Attested(statement)
    if not signers:
        output.say(f"{path} is signed; by whom is not looked at without --signers FILE")
        return Attested(statement, signature.read_bytes())
    try:
        who = signer(str(path), statement, signature.read_bytes(), Path(signers).expanduser())
    except Unavailable as error:
        raise boundary.Missing(str(error)) from None
    except SignatureError as error:
        raise Refusal("altered", str(error)) from None
    output.say(f"{path} is signed by {who}")
    return Attested(statement, signature.read_bytes(), who)


def keep(run: "Run", statements: Sequence[Attested]) -> None:
    """Call with the run's lock held, after the evidence was taken."""
    from kgen.gates.ssh_signatures import SUFFIX as SIGNATURE
    from kgen.gates.statement import SUFFIX
    from kgen.records import sha256_bytes

    for each in statements:
        path = run.path / FOLDER / f"{sha256_bytes(each.statement)[:12]}{SUFFIX}"
        run.durable.make_folder(path.parent)
        run.durable.write(path, each.statement)
        if each.signature:
            run.durable.write(path.with_name(path.name + SIGNATURE), each.signature)


def state(place: "SetPath", findings: "Sequence[Finding]", out: Path, key: str = "") -> None:
    """Write, and sign, one statement for each kernel that serves. `findings`: what `verify` has just found."""
    from kgen.gates.ssh_signatures import SUFFIX, SignatureError, sign
    from kgen.gates.statement import promoted
    from kgen.promotion.verify import name
    from kgen.records import canonical_json
    from kgen.store import DURABLE, KernelSet

    kernels = KernelSet(place.path)
    manifest = kernels.manifest()
    serving = [p for p in manifest.promotions if p.seq in set(manifest.champions.values())]
    lines = [
        promoted(p, kernels.evidence(p), {f.check: f.outcome.value for f in findings if f.subject == name(p)})
        for p in serving
    ]
    out = out.expanduser().absolute()
    DURABLE.write(out, b"".join(canonical_json(line) + b"\n" for line in lines))
    out.with_name(out.name + SUFFIX).unlink(missing_ok=True)  # of an earlier statement
    output.say(f"{out}: {len(lines)} statements")
    if key:
        try:
            output.say(f"signed: {sign(out, Path(key).expanduser())}")
        except SignatureError as error:
            raise boundary.Missing(str(error)) from None
