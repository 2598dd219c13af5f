"""docs/interpreter.md lists exactly the instructions that the interpreter knows."""

from support.ptx_page import PAGE, folded, page

from kgen.gates.ptx.table import supported


def test_the_page_lists_what_the_interpreter_knows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "PYTHONPATH=tests python -m support.ptx_page"


def test_every_form_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not [form for form in supported() if f"`{folded(form)}`" not in text]
