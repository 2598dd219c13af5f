"""Pages as one HTML file each: the templates of `pages/`, with the style and the script inside.

    render("report.html", page_title=..., page=...) -> str

A page loads nothing: its content policy allows the one style and the one script by hash, so that even markup that got
in could not run. Every value is escaped; characters that reorder or hide text are spelled out. Not covered: what a page
holds (`page`, `catalogue`).
"""

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import kgen
from kgen.report import sections

PAGES = Path(__file__).with_name("pages")
# Controls that HTML forbids, and those of bidirectional text: with them a source can read otherwise than it runs.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def render(name: str, **values: Any) -> str:
    """Raises jinja2.UndefinedError for a value that a template needs and did not get."""
    style, script = _text("style.css"), _text("page.js")
    made = (
        _environment()
        .get_template(name)
        .render(
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
            version=kgen.__version__,
            words=sections,
            **values,
        )
    )
    return HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", made)


def _text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@functools.cache
def _environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals["kind"] = lambda value: type(value).__name__
    return env
