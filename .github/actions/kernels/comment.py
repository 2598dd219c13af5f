"""Puts a report into the one comment of a pull request that carries its mark: a new one, or the old one updated.

    python comment.py report.md NUMBER      with GITHUB_TOKEN, GITHUB_REPOSITORY and GITHUB_API_URL, as in a workflow

The report is made by what a pull request brings: one without the mark is refused, so that it cannot pick the comment of
something else. Standard library only. Exit 0: done; 1: no such report, or the server refused, in one line. Not covered:
pull requests from forks, whose tokens may not write.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from check import MARK

PER_PAGE, PAGES = 100, 50


def call(method: str, path: str, body: dict | None = None) -> object:
    request = urllib.request.Request(
        f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def mine(number: int) -> int | None:
    """The comment that begins with the mark and is by a bot: a person may quote one."""
    for page in range(1, PAGES + 1):
        found = call("GET", f"/issues/{number}/comments?per_page={PER_PAGE}&page={page}")
        assert isinstance(found, list)
        for comment in found:
            if str(comment["body"]).startswith(MARK) and comment["user"]["type"] == "Bot":
                return int(comment["id"])
        if len(found) < PER_PAGE:
            break
    return None


def main(argv: list[str]) -> int:
    text, number = Path(argv[0]).read_text(encoding="utf-8"), int(argv[1])
    if not text.startswith(MARK):
        sys.stderr.write(f"comment.py: {argv[0]} does not begin with {MARK}: it is no report of check.py\n")
        return 1
    try:
        known = mine(number)
        if known is None:
            call("POST", f"/issues/{number}/comments", {"body": text})
        else:
            call("PATCH", f"/issues/comments/{known}", {"body": text})
    except urllib.error.URLError as error:
        sys.stderr.write(f"comment.py: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
