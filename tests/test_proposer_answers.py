"""From an answer to exactly one source, or to a value that says what is wrong; nothing raises."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgen.proposers.answers import MAX_ANSWER_BYTES, MAX_SOURCE_BYTES, FormatError, extract, source_file

CODE = "import cutlass\n\n\ndef build(dims, tokens, arch):\n    return None\n"


def code_of(answer: str | bytes) -> str | FormatError:
    return extract(answer)


def fault(answer: str | bytes) -> str:
    got = extract(answer)
    assert isinstance(got, FormatError), got
    assert got.message
    return got.code


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{CODE}```",
        f"Some words.\n\n```py\n{CODE}```\n\nMore words.",
        f"```python title=kernel.py\n{CODE}```",
        f"```\n{CODE}```",
        f"~~~python\n{CODE}~~~",
        f"````python\n{CODE}````",
        f"```PYTHON\r\n{CODE.replace(chr(10), chr(13) + chr(10))}```\r\n",
        f"```bash\npip list\n```\n```python\n{CODE}```\n```text\nout\n```",
        f"\ufeff```python\n{CODE}\n\n```",
        f"<think>maybe</think>\n```python\n{CODE}```",
    ],
)
def test_one_python_block_is_taken_whole_with_lf_and_one_newline_at_the_end(answer: str) -> None:
    assert extract(answer) == CODE
    assert extract(answer.encode()) == CODE


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("", "answer.no-code"),
        ("I would use wgmma here.", "answer.no-code"),
        (CODE, "answer.no-code"),
        (f"```cpp\n{CODE}```", "answer.no-code"),
        (f"```python\n{CODE}```\n```python\n{CODE}```", "answer.blocks"),
        (f"```\n{CODE}```\n```\n{CODE}```", "answer.blocks"),
        (f"```python\n{CODE}", "answer.unclosed"),
        ("```python\n```", "answer.empty"),
        ("```python\n \n\t\n```", "answer.empty"),
        (f"```python\nHere is the whole kernel for you:\n{CODE}```", "answer.prose"),
        (f"```python\n{CODE}\nThis kernel keeps the weights in registers.\n```", "answer.prose"),
        (f"```python\n# fine\n{CODE}\n- it splits K over the warps\n```", "answer.prose"),
        (b"```python\nx = '\xff\xfe'\n```", "answer.encoding"),
        (CODE.encode("utf-16"), "answer.encoding"),
        ("```python\nx = '\ud800'\n```", "answer.encoding"),
        ("```python\nx = '\0'\n```", "answer.encoding"),
        ("x" * (MAX_ANSWER_BYTES + 1), "answer.size"),
        ("x" * 10_000_000, "answer.size"),
        ("```python\nx = '" + "y" * MAX_SOURCE_BYTES + "'\n```", "answer.size"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_malformed_answer_is_a_value_with_a_stable_code(answer: str | bytes, code: str) -> None:
    assert fault(answer) == code


@pytest.mark.parametrize(
    "broken",
    [
        "def build(dims, tokens, arch)\n    return None\n",
        "x = (1,\n",
        "for i in range(3):\nx = i\n",
        "(" * 5000 + "\n",
        "-" * 100_000 + "1\n",
        "not " * 20_000 + "a\n",
        "x = lambda: x =\n",
    ],
    ids=lambda value: value[:12],
)
def test_a_syntax_error_in_code_is_left_to_the_compile_gate(broken: str) -> None:
    assert extract(f"```python\n{broken}```") == broken


def test_text_that_looks_like_prose_inside_strings_and_comments_is_kept() -> None:
    source = '"""This kernel keeps the weights in registers."""\n# Here is the whole kernel.\nx = 1\n'
    assert extract(f"```python\n{source}```") == source


def test_a_whole_file_needs_no_fence() -> None:
    assert source_file(CODE.encode()) == CODE
    assert isinstance(source_file(b"Here is my file as you asked.\n"), FormatError)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)


@given(st.one_of(st.binary(max_size=400), st.text(max_size=400)))
@example("```python\n" * 3)
@example("~~~\n```python\n~~~")
def test_any_answer_gives_a_source_or_a_format_error(answer: str | bytes) -> None:
    got = extract(answer)
    if isinstance(got, str):
        assert got.endswith("\n") and "\r" not in got and got.strip()
        assert got.encode("utf-8")
        assert len(got.encode()) <= MAX_SOURCE_BYTES + 1
    else:
        assert got.code.startswith("answer.")


@given(lines=st.lists(TEXT.filter(lambda t: "```" not in t and "~~~" not in t), max_size=4), words=TEXT)
def test_code_comes_out_as_it_went_in_whatever_stands_around_it(lines: list[str], words: str) -> None:
    words = words.replace("```", "").replace("~~~", "")
    source = CODE + "".join(f"# {' '.join(line.split())}\n" for line in lines)
    assert extract(f"{words}\n\n```python\n{source}```\n\n{words}") == source.rstrip() + "\n"


@given(st.text(st.sampled_from("`~ \npython#x"), max_size=80))
def test_extraction_is_stable_under_quoting_its_own_result(text: str) -> None:
    got = extract(text)
    if isinstance(got, str):
        fence = "`" * 90
        assert extract(f"{fence}python\n{got}{fence}") == got
