"""All targets by name, in the order of the table in docs/fuzzing.md."""

from fuzz.target import Target
from fuzz.targets import artefacts, ptx, replies, runners, stored, texts

TARGETS: dict[str, Target] = {
    target.name: target for part in (texts, stored, artefacts, runners, ptx, replies) for target in part.targets()
}
