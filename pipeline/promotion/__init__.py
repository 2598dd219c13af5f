"""Promote, roll back, verify: the only writers of a kernel set."""

from kgen.promotion.case import Case, Refused
from kgen.promotion.freshness import Current, stale
from kgen.promotion.gather import gather
from kgen.promotion.promote import promote
from kgen.promotion.rollback import RolledBack, rollback
from kgen.promotion.status import StalePromotion, StatusRow, stale_promotions, status
from kgen.promotion.verify import Finding, Outcome, Rebuilder, RebuildUnavailable, VerifyReport, verify

__all__ = [
    "Case",
    "Current",
    "Finding",
    "Outcome",
    "RebuildUnavailable",
    "Rebuilder",
    "Refused",
    "RolledBack",
    "StalePromotion",
    "StatusRow",
    "VerifyReport",
    "gather",
    "promote",
    "rollback",
    "stale",
    "stale_promotions",
    "status",
    "verify",
]
