"""Binding evidence to a run: HMAC-SHA256 over its canonical JSON under the run's one-time key.

It shows that the evidence came back from a kit that this run made and was not altered since. It does not show that the
GPU host was honest: whoever holds the kit holds the key.
"""

import hmac

from kgen.records import Evidence, SignedEvidence, canonical_json, to_json


def digest(evidence: Evidence, key: bytes) -> str:
    """The hexadecimal HMAC. Raises ValueError for an empty key."""
    if not key:
        raise ValueError("the run's key is empty")
    return hmac.new(key, canonical_json(to_json(evidence)), "sha256").hexdigest()


def sign(evidence: Evidence, key: bytes) -> SignedEvidence:
    return SignedEvidence(evidence, evidence.run, digest(evidence, key))


def check(signed: SignedEvidence, key: bytes) -> bool:
    """Whether the evidence is unaltered and was signed with this key for the run that it names."""
    if not key or not signed.hmac or signed.run != signed.evidence.run:
        return False
    try:
        wanted = digest(signed.evidence, key)
    except ValueError:  # text that is not UTF-8: nothing that `sign` has ever made
        return False
    return hmac.compare_digest(wanted.encode(), signed.hmac.encode("utf-8", "replace"))
