"""Phases of kernels of the real compiler, whose sources say what they must come to; and what a finding says of them."""

import json
import lzma
import re
from pathlib import Path

import pytest

from kgen.diagnosis.perf import findings
from kgen.diagnosis.shown import MAX_LINE
from kgen.gates.audit import phases
from kgen.gates.audit.phases import Phase, of
from kgen.gates.audit.ptx import facts
from kgen.records import PerfPoint

BUILT = json.loads(lzma.decompress((Path(__file__).parent / "ptx_corpus" / "built.json.xz").read_bytes()))
KEY = "op/d/t8/sm_90a"


WIDTHS = {f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64, 128)}


def vector(opcode: str) -> int:
    return next((n for n in (2, 4, 8) if f".v{n}." in opcode), 1)


def parts(name: str, kernel: int = 0) -> dict[str, Phase]:
    """Phase by name of a kernel of the corpus; of several with one name the first."""
    found = list(of(BUILT[name]["ptx"]).values())[kernel]
    return {p.name: p for p in reversed(found)}


def test_a_sum_in_shared_memory_loads_reduces_and_stores() -> None:
    found = parts("tree_sum.right")  # each thread loads one f32; seven barriers; one thread stores one f32
    assert list(found) == ["epilogue", "reduction", "start"]
    assert found["start"].load_bytes == 4 and found["start"].barriers == 1
    assert found["reduction"].barriers == 6 and found["reduction"].load_bytes == 0 and found["reduction"].shared >= 12
    assert found["epilogue"].store_bytes == 4 and not any(p.loop for p in found.values())


def test_a_vector_copy_is_one_phase_with_its_width() -> None:
    (only,) = of(BUILT["vector.right"]["ptx"]).values()
    assert [(p.name, p.load_bytes, p.store_bytes) for p in only] == [("start", 16, 16)]


def test_bytes_of_bulk_copies_are_those_that_the_barrier_expects_of_a_block() -> None:
    found = parts("box.right")  # 64 x 64 bf16, expected by one thread, then a loop that stores
    assert found["body"].block_bytes == 64 * 64 * 2 and found["body"].bulk == 1
    (loop,) = [p for p in found.values() if p.loop]
    assert loop.store_bytes == 16 * 2  # four turns of sixteen bf16 each: 64 in all
    assert parts("peers.right")["start"].block_bytes == 128


def test_a_loop_that_loads_is_the_main_loop_and_a_wait_on_an_mbarrier_is_none() -> None:
    found = parts("wgmma.right")
    assert found["main loop"].loop and found["main loop"].load_bytes == 32
    assert found["epilogue"].mma >= 1 and found["epilogue"].store_bytes and not found["epilogue"].load_bytes
    assert not any(p.loop for p in parts("bulk.right").values())
    assert BUILT["bulk.right"]["ptx"].count("try_wait") >= 1


def test_every_kernel_of_a_module_has_phases_of_its_own() -> None:
    assert len(of(BUILT["chain.right"]["ptx"])) == 2
    assert parts("chain.right", 1)["body"].store_bytes == 4


@pytest.mark.parametrize("name", sorted(BUILT))
def test_no_instruction_is_lost_or_counted_twice(name: str) -> None:
    text = BUILT[name]["ptx"]
    every = [p for found in of(text).values() for p in found]
    assert sum(p.instructions for p in every) == facts(text)["instructions"]
    stored = [m[0] for m in re.finditer(r"\bst\.\S*global\S*", text)]
    assert sum(p.store_bytes for p in every) == sum(WIDTHS[m.rpartition(".")[2]] * vector(m) for m in stored)


@pytest.mark.parametrize(
    "text", ["", ".entry k(", ".visible .entry k(\n{\n$L: bra $L;\n}\n", "\0;;}\n", "@ ; ld.global."]
)
def test_any_text_has_phases_or_none(text: str) -> None:
    assert all(p.instructions >= 0 for found in of(text).values() for p in found)


def test_facts_are_read_once_of_a_file_and_leave_zeros_out(tmp_path: Path) -> None:
    path = tmp_path / "a.ptx"
    path.write_text(BUILT["tree_sum.right"]["ptx"])
    found = phases.facts(path)
    path.unlink()
    assert found == phases.facts(path) and [f["name"] for f in found] == ["start", "reduction", "epilogue"]
    assert "mma" not in found[0] and found[0]["load_bytes"] == 4


def evidence() -> dict[str, object]:
    launch = {"kernel": "k", "grid": [264, 1, 1], "block": [256, 1, 1], "registers": 64, "smem": 0}
    listed = [
        {"kernel": "k", "name": "start", "instructions": 30, "load_bytes": 16, "barriers": 1},
        {"kernel": "k", "name": "main loop", "loop": True, "instructions": 40, "load_bytes": 64, "mma": 8},
        {"kernel": "k", "name": "epilogue", "instructions": 9, "store_bytes": 4},
        {"kernel": "never launched", "name": "start", "instructions": 5},
    ]
    return {KEY: {"launches": [launch], "phases": listed, "ptx": {}}}


def test_shares_of_the_floor_go_to_phases_and_the_rest_of_the_time_to_none() -> None:
    # 264 * 256 threads * 16 B = 1.08 MB; floor 5 us at 4.48e12 B/s = 22.4 MB; so 21.3 MB, 95 %, 4.76 us are the loop's
    point = PerfPoint(KEY, 8, "graph", "t", 10.0, {"stock": 12.0}, "stock", 0.83, 0.8, 0.9, 0.5, 5.0, 9, "win")
    (found,) = [f for f in findings(evidence(), [point]) if f.code == "phases"]
    assert "k start: 30 instructions, 16 B read a thread, 1 barriers = at most 1.08 MB, 0.24 us, 5%" in found.text
    assert "64 B read a thread and turn, 8 mma = 21.3 MB, 4.76 us, 95%" in found.text
    assert "k epilogue: 9 instructions, 4 B written a thread" in found.text and "never" not in found.text
    assert "Measured 10.00 us: 5.00 us are in none" in found.text and "static" in found.text
    assert len(found.line) <= MAX_LINE


def test_without_a_time_bytes_stand_for_themselves() -> None:
    (found,) = [f for f in findings(evidence(), []) if f.code == "phases"]
    assert "at most 1.08 MB, 0.24 us" in found.text and "Measured" not in found.text
    assert "64 B read a thread and turn, 8 mma;" in found.text


def test_a_loop_that_waits_for_a_value_is_called_so_and_gets_no_share_of_the_bytes() -> None:
    waiting = evidence()
    spin = {"kernel": "k", "name": "loop 2", "loop": True, "instructions": 3, "load_bytes": 4}
    waiting[KEY]["phases"].append(spin)  # type: ignore[index]
    point = PerfPoint(KEY, 8, "graph", "t", 10.0, {"stock": 12.0}, "stock", 0.83, 0.8, 0.9, 0.5, 5.0, 9, "win")
    (shared,) = [f for f in findings(waiting, [point]) if f.code == "phases"]
    assert "the loops together 21.3 MB" in shared.text  # as far as is known, both may move them
    waiting[KEY]["waits"] = ["k"]  # type: ignore[index]
    (found,) = [f for f in findings(waiting, [point]) if f.code == "phases"]
    assert "64 B read a thread and turn, 8 mma = 21.3 MB, 4.76 us, 95%" in found.text
    assert "k wait: 3 instructions, 4 B read a thread and turn. Measured" in found.text


def counted(text: str) -> dict[str, int]:
    """Instructions, and those of each two first words, line by line. Predicates of inline assembly's own are none."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.replace(";", " ; ").split()
        words = words[1:] if words and words[0].startswith(("@%", "@!%")) else words
        if len(words) > 1 and words[0][0].islower() and not words[0].endswith(":"):
            head = words[0].replace("::", ".").split(".")
            for name in ("instructions", ".".join(head[:2])):
                found[name] = found.get(name, 0) + 1
    return found


KINDS = {"global_loads": "ld.global", "global_stores": "st.global", "shared_loads": "ld.shared", "mma": "mma.sync"}


@pytest.mark.parametrize("name", sorted(BUILT))
def test_facts_of_a_real_kernel_are_those_of_its_words(name: str) -> None:
    text = BUILT[name]["ptx"]
    wanted, got = counted(text), facts(text)
    assert got["instructions"] == wanted["instructions"] > 0
    assert {k: got.get(k, 0) for k in KINDS} == {k: wanted.get(of_kind, 0) for k, of_kind in KINDS.items()}


@pytest.mark.parametrize("end", ["\r\n", "\r", "\f", "\v", "\x1c", "\x85", "\u2028"])
def test_whatever_ends_the_lines_of_a_text_they_are_read_alike(end: str) -> None:
    text = BUILT["wgmma.right"]["ptx"]
    assert of(text) and of(text.replace("\n", end)) == of(text) == of(text.rstrip("\n"))
    assert facts(text.replace("\n", end)) == facts(text)


def test_no_instruction_goes_on_behind_the_end_of_its_line() -> None:
    kernel = ".entry k()\n{\n  ld.global.b32 %r1, [%rd1]\n  ;\n  ret\n;\n  bar.sync 0;\n}\n"
    (only,) = of(kernel)["k"]
    assert only.instructions == only.barriers == 1 and only.load_bytes == 0
    assert facts(kernel) == {"instructions": 2, "global_loads": 1, "barriers": 1}
