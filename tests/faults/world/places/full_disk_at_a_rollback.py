from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.places import Command, filled

CASE = Case(
    row=21,
    what="the disk is full when the manifest is written",
    who="kgen rollback",
    code="exit 4",
    attack=Command(
        lambda home: ("rollback", "moe_shared"),
        ("manifest.json", "No space left on device", "free some space"),
        prepare=lambda desk, home: filled(home, "one", "two"),
        world={"full": True, "place": "HOME/set"},
        left=True,
    ),
    off=turned(
        "kgen.promotion.rollback",
        "        durable.write(root / MANIFEST, manifest_bytes(after))",
        "        (root / MANIFEST).write_bytes(manifest_bytes(after))",
        "a manifest is replaced in one step",
    ),
    then="exit 4, unclear, changed",
)
