import shlex
from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.places import COMMON, propose


@dataclass(frozen=True)
class Followed:
    """Runs, set and cache below a folder with spaces, quotes and letters of all kinds; then the command said next."""

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh(" it's Größe 日本 $x")
        places = ("--runs", f"{home}/my runs", "--cache", f"{home}/my cache")
        done = desk.here(home, *propose(home), *places, off=off)
        following = next(line for line in done.out.splitlines() if line.startswith("next:"))
        try:
            words = shlex.split(following.removeprefix("next:"))
        except ValueError:
            words = []
        again = desk.here(home, "runs", "--runs", words[words.index("--runs") + 1]) if "--runs" in words else None
        return f"exit {done.exit}, {'found again' if again and 'refused' in again.out else 'lost'}"


CASE = Case(
    row=28,
    what="paths with spaces, quotes and letters of all kinds",
    who="kgen propose",
    code="exit 1, found again",
    attack=Followed(),
    off=turned(COMMON, "{option} {shlex.quote(value)}", "{option} {value}", "the next command is quoted for a shell"),
    then="exit 1, lost",
)
