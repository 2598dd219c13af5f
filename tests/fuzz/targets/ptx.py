"""PTX text: counted, parsed, and run. The text comes from a build, and may be any."""

import functools
import json
import lzma

import numpy as np
from support.checkout import ROOT
from support.ptx import buffers, kernel, launch, module

from fuzz.target import Target, one_line
from kgen.gates.audit.ptx import facts
from kgen.gates.ptx import Limits, PtxError, run
from kgen.gates.ptx.parse import parse

LIMITS = Limits(instructions=3000, seconds=2.0, bytes=64 << 20)
BODY = """mul.wide.u32 %d5, %r1, 4;
add.s64 %d6, %d0, %d5;
add.s64 %d7, %d1, %d5;
ld.global.b32 %r5, [%d6];
mov.u32 %r9, 0;
bra TEST;
BODY: shr.u32 %r5, %r5, 1;
{ .reg .pred q; .reg .b32 t; setp.eq.u32 q, %r5, 3; @q bra NEXT; add.u32 t, %r9, 1; mov.b32 %r9, t; }
NEXT: add.u32 %r9, %r9, 1;
TEST: setp.ne.u32 %p2, %r5, 0;
@%p2 bra BODY;
st.shared.b32 [s+4], %r9;
bar.sync 0;
shfl.sync.bfly.b32 %r10|%p3, %r9, 1, 0x1f, 0xffffffff;
vote.sync.ballot.b32 %r11, %p3, 0xffffffff;
atom.global.add.u32 %r12, [%d7], %r10;
cvt.rn.bf16.f32 %h1, 0f3F800000;
fma.rn.f32 %r13, %r9, 0f40000000, 0f3F000000;
ld.global.v4.b32 {%r14, %r15, %r16, %r17}, [%d0+16];
st.global.b32 [%d7], %r9;"""
HEAD = ".global .align 4 .b8 table[8] = {1, 2, 3};\n.extern .shared .align 16 .b8 dyn[];\n"
SMALL = module(HEAD + kernel(BODY, shared=256))
WORDS = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"(",
        b")",
        b";",
        b",",
        b"@%p1 ",
        b"@!",
        b"|",
        b"/*",
        b"*/",
        b"//",
        b'"',
        b"<",
        b">",
        b"-",
        b"+",
    ),
    *(b".reg .b32 %r<200000>;", b".reg .b32 x<-1>;", b".shared .b8 z[4294967296];", b".global .b8 g[99999999][99999];"),
    *(
        b".local .align 65536 .b8 l[8];",
        b".align 0",
        b".maxntid 0, 0, 0",
        b".version",
        b".entry k()\n{",
        b"0xffffffffffffffff",
    ),
    *(
        b"ld.global.v8.f32",
        b"st.shared.v4.b32",
        b"bar.sync 17, 3;",
        b"atom.shared.cas.b64",
        b"mma.sync.aligned.m16n8k16.row.col",
    ),
    *(
        b"wgmma.fence.sync.aligned;",
        b"cp.async.bulk.commit_group;",
        b"mbarrier.init.shared.b64 [s], 1;",
        b"div.s32",
        b"rem.u64",
    ),
    *(
        b"%tid.w",
        b"%clock64",
        b"%nosuch",
        b"brx.idx",
        b"call",
        b"trap;",
        b"exit;",
        b"prmt.b32",
        b"bfe.u32",
        b"dp4a.s32.s32",
    ),
    *(
        b".b128",
        b".f64",
        b".f16x2",
        b".pred",
        b".e4m3x2",
        b"0d7ff0000000000000",
        b"0f7fc00000",
        b".param .b64 p9,",
        b"_",
    ),
)


@functools.cache
def _texts() -> tuple[bytes, ...]:
    """Two small texts, and what the compiler wrote for some kernels of the corpus."""
    built = json.loads(lzma.decompress((ROOT / "tests" / "ptx_corpus" / "built.json.xz").read_bytes()))
    found = [text for text in _strings(built) if ".entry" in text]
    return (SMALL.encode(), *(text.encode() for text in sorted(found, key=len)[:6]))


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in _strings(item)]


def _facts(data: bytes) -> None:
    counts = facts(data.decode("utf-8", "replace"))
    assert all(0 <= n <= max(1, counts["instructions"]) for n in counts.values())


def _parsed(data: bytes) -> None:
    parse.cache_clear()
    try:
        found = parse(data.decode("utf-8", "replace"))
    except PtxError as error:
        one_line(str(error))
        return
    for entry in found.entries.values():
        assert all(0 <= at <= len(entry.instructions) for at in entry.labels.values())
        assert sum(p.size for p in entry.params) < 1 << 24


def _ran(data: bytes) -> None:
    parse.cache_clear()
    arrays = {"x": ("in", np.arange(64, dtype=np.int32)), "y": ("out", np.zeros(64, np.int32))}
    text = data.decode("utf-8", "replace")
    try:
        result = run(
            text, [launch(("x", "y"), grid=2, block=64, shared=64)], buffers(arrays), len(data) % 3, limits=LIMITS
        )
    except PtxError as error:
        one_line(str(error))
        return
    for words in (result.skipped, result.stopped, *(str(f) for f in result.findings)):
        words.encode("utf-8")
        assert len(words) < 4000, f"a message of {len(words)} characters"
    assert result.seconds < LIMITS.seconds * 2 + 1 and all(len(v) < 1 << 27 for v in result.outputs.values())


def targets() -> list[Target]:
    return [
        Target(
            "ptx-facts",
            "gates.audit.ptx.facts",
            "PTX of the corpus",
            "counts, whatever the text",
            "text",
            _texts,
            _facts,
            WORDS,
        ),
        Target(
            "ptx-parse",
            "gates.ptx.parse.parse",
            "PTX of the corpus",
            "a module, or a `PtxError` of one line",
            "text",
            _texts,
            _parsed,
            WORDS,
        ),
        Target(
            "ptx-run",
            "gates.ptx.run",
            "a small kernel of many instructions",
            "a result within its limits, or a `PtxError` of one line",
            "text",
            lambda: [SMALL.encode()],
            _ran,
            WORDS,
        ),
    ]
