"""Signatures with an ssh key (ed25519 or another), made and checked by OpenSSH's own `ssh-keygen -Y`.

    sign(path, key) -> Path                      writes `path`.sig
    signer(name, data, signature, signers) -> who signed, as the allowed-signers file calls them

The namespace is `kgen`, so that a signature made for something else, such as a commit, does not count here. `signers`
is a file in the format of ALLOWED SIGNERS in ssh-keygen(1). Both raise SignatureError, one line; its kind
Unavailable where nothing was found out about the signature.
Not covered: where the keys come from, and whom to allow.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kgen.records import one_line

NAMESPACE = "kgen"
SUFFIX = ".sig"
SECONDS = 60  # a key in an agent or on a token may ask its owner


class SignatureError(Exception):
    """Not signed, not by anybody who is allowed, or altered since."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class Unavailable(SignatureError):
    """It could not be looked at: no ssh-keygen, no answer from it, or no file of allowed signers."""


def sign(path: Path, key: Path) -> Path:
    """`key`: a private key, or a public one whose private half an agent holds."""
    out = path.with_name(path.name + SUFFIX)
    out.unlink(missing_ok=True)  # ssh-keygen would ask before it writes over one
    done = _run(["-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(path)])
    if done.returncode != 0 or not out.is_file():
        raise SignatureError(f"{path} could not be signed with {key}: {_words(done)}")
    return out


def signer(name: str, data: bytes, signature: bytes, signers: Path) -> str:
    """`name` is what messages call the data."""
    if not signers.is_file():
        raise Unavailable(f"there is no file {signers} with allowed signers: see ssh-keygen(1), ALLOWED SIGNERS")
    with tempfile.TemporaryDirectory(prefix="kgen-sig-") as folder:
        path = Path(folder) / "signature"
        path.write_bytes(signature)
        found = _run(["-Y", "find-principals", "-s", str(path), "-f", str(signers)])
        who = found.stdout.decode("utf-8", "replace").splitlines()
        if found.returncode != 0 or not who:
            raise SignatureError(f"the signature of {name} is by nobody in {signers}, or is damaged: {_words(found)}")
        checked = _run(["-Y", "verify", "-f", str(signers), "-I", who[0], "-n", NAMESPACE, "-s", str(path)], given=data)
    if checked.returncode != 0:
        raise SignatureError(f"{name} is not what {who[0]} signed: altered since, or signed for something else")
    return who[0]


def _run(arguments: Sequence[str], given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    program = shutil.which("ssh-keygen")
    if program is None:
        raise Unavailable("no ssh-keygen to make or check signatures: install openssh-client (8.1 or newer)")
    try:
        return subprocess.run([program, *arguments], input=given, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"ssh-keygen did not answer within {SECONDS} s") from None


def _words(done: "subprocess.CompletedProcess[bytes]") -> str:
    return (done.stderr or done.stdout).decode("utf-8", "replace").strip()[:200] or f"exit {done.returncode}"
