"""Signing of evidence, as promotion sees it. The functions live beside the run's key, so that kits can use them too."""

from kgen.store.signing import check, digest, sign

__all__ = ["check", "digest", "sign"]
