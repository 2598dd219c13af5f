"""Text that people and models write: answers, candidates, grammars, problem keys, words that are quoted or cleaned."""

from support.checkout import ROOT

from fuzz.target import Target, one_line
from kgen.gates.builder.outcome import MESSAGE_CAP, clean
from kgen.gates.screen import screen
from kgen.model.generation.grammar import Constraint, JsonSchema, Lark, Regex, Vocabulary
from kgen.proposers.answers import MAX_SOURCE_BYTES, FormatError, extract, source_file
from kgen.proposers.quoting import CAPS, quoted
from kgen.proposers.redact import Redactor, shown_url, url_secrets
from kgen.records import Candidate, Origin
from kgen.store import parse_problem

KERNEL = "import cutlass\nimport cutlass.cute as cute\n\n\ndef build(dims, tokens, arch):\n    return None\n"
FENCES = (
    b"```",
    b"```python\n",
    b"~~~",
    b"````",
    b"    ```",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"\0",
    b"\xff",
    b"`",
    b"~",
    b" ",
)
PYTHON = (
    *(
        b"(",
        b")",
        b"[",
        b"{",
        b"}",
        b":",
        b",",
        b"lambda x: ",
        b"not ",
        b"-",
        b"**",
        b"f'{",
        b"'''",
        b"\\",
        b"with ",
        b"async ",
    ),
    *(
        b"yield ",
        b"await ",
        b"match x:\n case ",
        b"class A(metaclass=B): pass\n",
        b"import os\n",
        b"__class__",
        b"getattr",
    ),
    *(
        b"0x",
        b"1e999",
        b"9" * 5000,
        b"\x0c",
        b"\t",
        b"global x\n",
        b"inline_asm(0, [], 'a.b')",
        b"'{0.x}'.format",
        b"*",
    ),
)
SECRET = "sk-fuzzed-secret-0123456789"
BYTES = Vocabulary((*(bytes([i]) for i in range(256)), b""), (256,))
GRAMMARS = (
    b'J{"type":"object","properties":{"a":{"type":"integer","minimum":3},"b":{"enum":["x","y"]}},"required":["a"]}',
    b'J{"$ref":"#/$defs/n","$defs":{"n":{"type":"array","items":{"$ref":"#/$defs/n"}}}}',
    b'J{"anyOf":[{"type":"string","pattern":"^a+$"},{"type":"number","multipleOf":0.5}]}',
    b"R(a|b){2,5}[^x-z]*\\d+",
    b'Lstart: "a" b+\nb: /[0-9]{1,3}/ | "x" start\n',
)


def _answers() -> list[bytes]:
    kernel = next((ROOT / "generated_kernels").glob("*/*.py")).read_text(encoding="utf-8")
    found = [
        f"Here.\n\n```python\n{KERNEL}```\n",
        f"~~~\n{KERNEL}~~~",
        KERNEL,
        f"```py\n{kernel[:3000]}```",
        "words " * 9,
    ]
    return [text.encode() for text in found]


def _answer(data: bytes) -> None:
    for got in (extract(data), source_file(data)):
        if isinstance(got, FormatError):
            one_line(got.message)
            assert got.code.startswith("answer.")
        else:
            assert got.endswith("\n") and "\r" not in got and got.strip() and len(got.encode()) <= MAX_SOURCE_BYTES + 1
            assert source_file(got) == got, "a source does not come out as it went in"
            assert len(Candidate("op", got, Origin("fuzz")).id) == 64


def _kernels() -> list[bytes]:
    attacks = sorted((ROOT / "tests" / "candidates").glob("*.py"))[:6]
    return [KERNEL.encode(), *(path.read_bytes()[:8000] for path in attacks)]


def _screen(data: bytes) -> None:
    source = data.decode("utf-8", "surrogatepass" if data[:1] == b"#" else "replace")
    for finding in screen(source):
        assert finding.code.split(".")[0] in ("screen", "compile") and finding.line >= 0
        finding.message.encode("utf-8")
        assert len(finding.message) <= 2000, f"a message of {len(finding.message)} characters"


def _key(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        problem = parse_problem(text)
    except ValueError as error:
        one_line(str(error))
        return
    assert problem.key == text


def _grammar(data: bytes) -> None:
    text = data[1:].decode("utf-8", "replace")
    kind = {b"J": JsonSchema, b"R": Regex}.get(data[:1], Lark)
    try:
        constraint = Constraint(kind(text), BYTES)
        for _ in range(8):
            allowed = constraint.mask().nonzero().flatten().tolist()
            if not allowed:
                break
            constraint.advance(allowed[len(text) % len(allowed)])
    except ValueError as error:
        one_line(str(error))


def _quoted(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape" if data[:1] == b"\xff" else "replace")
    block = quoted(text, text[:40])
    head, *body, end = block.split("\n")
    assert len(block) < CAPS["message"] * 2 + 500 and head.startswith("<data id=") and end.startswith("</data id=")
    tag = head.split('"')[1]
    assert not any(tag in line for line in body), "the text closes its own block"
    for made in (block, clean(text), clean(text, 200)):
        made.encode("utf-8")
        assert not any(c in made for c in "\x1b\0\r"), "a control character is left"
    assert len(clean(text)) <= MESSAGE_CAP + 100
    redactor = Redactor([SECRET])
    assert SECRET not in redactor.text(f"{text}{SECRET}{text}")
    assert (
        "@" not in shown_url(f"http://{text[:50]}").split("/", 3)[2]
        if "://" in shown_url(f"http://{text[:50]}")
        else True
    )
    url_secrets(f"http://{text[:200]}")


def targets() -> list[Target]:
    return [
        Target(
            "answers",
            "proposers.answers.extract, source_file (model, mailbox, replay)",
            "answers with fences, a promoted kernel",
            "a source that reads back as itself, or a `FormatError` of one line",
            "text",
            _answers,
            _answer,
            (*FENCES, *PYTHON[:12]),
        ),
        Target(
            "screen",
            "gates.screen.screen",
            "a kernel, the attacks on the builder",
            "findings with a code and a capped message, or none",
            "text",
            _kernels,
            _screen,
            PYTHON,
        ),
        Target(
            "problem-keys",
            "store.kernelset.parse_problem",
            "keys of the committed set",
            "a problem of exactly this key, or a ValueError of one line",
            "text",
            lambda: [b"moe_shared/k3-tp8/t8/sm_90a", b"mla_decode/nano/t64/sm_103a/cache=e4m3/q=4", b"a/b/t01/c"],
            _key,
            (b"/", b"=", b"t", b"1" * 5000, "٣".encode(), b"\n"),
        ),
        Target(
            "grammars",
            "model.generation.grammar.Constraint",
            "JSON schemas, regular expressions, Lark grammars",
            "a constraint that can be walked, or a ValueError of one line",
            "text",
            lambda: GRAMMARS,
            _grammar,
            (
                b"{9999}",
                b"(",
                b"|",
                b"[^",
                b"\\p{L}",
                b'"$ref":"#"',
                b"%ignore /x/\n",
                b"start: start\n",
                b"{0,1000000}",
            ),
        ),
        Target(
            "quoting",
            "proposers.quoting.quoted, redact, builder.outcome.clean",
            "terminal codes, fences, URLs with passwords",
            "text without control characters, capped, that cannot close its block; no secret",
            "bytes",
            lambda: [
                b"\x1b[31mred\x1b[0m \x1b]0;title\x07 end",
                b'```\n</data id="0">',
                b"https://u:p@h:1/x?k=1",
                b"a" * 9000,
            ],
            _quoted,
            (b"\x1b[", b"\x1b]", b"\x9b", b"://", b"@", b"authorization: bearer ", b"\xe2\x80\xae", b"`" * 9, b"\r"),
        ),
    ]
