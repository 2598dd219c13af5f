"""How the launch recorder's process is read: scripts stand in for the compiler and for the compiled recorder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kgen.gates.audit import recorder as recorders
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.gates.audit.recorder import Argument, Recorder, RecorderError
from kgen.gates.sandbox import Level, choose
from kgen.records import Launch, LaunchArg, sha256_bytes

CUBIN = Cubin(b"cubin", b"image", 90, True, (), {"k": (8, 4)})
MADE = ['{"call": 0}', '{"call": 0}', '{"done": 0}']
LINKS = "echo linked > kernel.so"


@pytest.fixture(scope="module")
def level() -> Level:
    return choose()


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return path


def kept_at(cache: Path, compiler: Path) -> Path:
    """Where a compiled recorder lies: by the hash of its source and its compiler."""
    source = Path(recorders.__file__).with_name("recorder.c").read_bytes()
    return cache / sha256_bytes(source + str(compiler).encode())[:16] / "recorder"


class Stand:
    """A recorder whose compiler and program are scripts."""

    def __init__(
        self, level: Level, folder: Path, patch: pytest.MonkeyPatch, compiler: Sequence[str] = (LINKS,)
    ) -> None:
        self.level, self.cache = level, folder / "cache"
        self.compiler = script(folder / "tools" / "bin" / "cc", *compiler)
        patch.setenv("CC", str(self.compiler))

    def run(self, *lines: str) -> tuple[Launch, ...]:
        script(kept_at(self.cache, self.compiler), *lines)
        return Recorder(self.level, self.cache).record(b"object", CUBIN, (Argument("n", "i32", None, 5),))


@pytest.fixture
def stand(level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(level, tmp_path, monkeypatch)


def said(*lines: str, status: int = 0) -> list[str]:
    return ["cat > /dev/null", *(f"echo '{line}'" for line in lines), f"exit {status}"]


def test_what_is_compiled_is_kept_and_other_words_are_no_lines(stand: Stand) -> None:
    assert stand.run(*said("words", "{no json", ' {"call": 0}', '["call"]', *MADE)) == ()


def test_the_program_gets_the_object_the_image_and_a_description(stand: Stand) -> None:
    """With no more rights than reading needs, and ten seconds of the processor."""
    with pytest.raises(RecorderError) as caught:
        stand.run(
            "cat", "cat kernel.o kernel.fatbin", "echo", "stat -c %a .. kernel.o kernel.fatbin", "ulimit -t", "exit 2"
        )
    assert str(caught.value).split(": ", 1)[1].split() == (
        ["kernel", "k", "2", "8", "4", "int", "5", "objectimage", "755", "644", "644", "10"]
    )


@pytest.mark.parametrize(("status", "length"), [(2, 600), (4, 601)])
def test_a_recorder_that_fails_with_words_is_our_error(stand: Stand, status: int, length: int) -> None:
    with pytest.raises(RecorderError) as caught:
        stand.run(*said("{broken", "y" * length, status=status))
    words = "y" * 600 if length == 600 else f"{'y' * 300}\n... 1 characters cut ...\n{'y' * 300}"
    assert str(caught.value) == f"the launch recorder failed: {words}"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["words"], 1),
        (["words"], 3),
        (["words"], 5),
        ([], 2),
        (["words", *MADE], 2),
        (["words", MADE[0]], 4),
        (MADE, 7),
        ([], 0),
        (["words"], 0),
        (MADE[:2], 0),
        ([*MADE, MADE[0]], 0),
    ],
)
def test_any_other_end_is_the_launchers(stand: Stand, lines: list[str], status: int) -> None:
    with pytest.raises(AuditError, match=rf"the launcher died \(status {status}\)") as caught:
        stand.run(*said(*lines, status=status))
    assert caught.value.code == "audit.launcher"


def test_of_a_launcher_that_writes_too_much_nothing_is_believed(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "OUTPUT_CAP", 1 << 16)
    with pytest.raises(AuditError, match="did not return, or launched without end"):
        stand.run(*said(*MADE)[:-1], "head -c 200000 /dev/zero | tr '\\0' x")


def test_an_object_that_does_not_link_is_the_candidates(
    level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(level, tmp_path, monkeypatch, compiler=("echo undefined symbol x >&2", "exit 1"))
    with pytest.raises(AuditError, match="the object does not link: undefined symbol x") as caught:
        stand.run(*said(*MADE))
    assert caught.value.code == "audit.link"


COMPILES = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"; chmod 600 "$2"'


def test_a_recorder_is_compiled_once_into_a_folder_of_its_own(
    level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(level, tmp_path, monkeypatch, compiler=(COMPILES,))
    made = kept_at(stand.cache, stand.compiler)
    Recorder(level, stand.cache)
    assert (made.read_text(), made.stat().st_mode & 0o777) == ("made\n", 0o755)
    assert [p.name for p in made.parent.iterdir()] == ["recorder"]
    made.write_text("kept")
    Recorder(level, stand.cache)
    assert made.read_text() == "kept"
    made.unlink()
    Recorder(level, stand.cache)
    assert made.read_text() == "made\n", "also where the folder is there already"


def test_a_compiler_that_fails_is_quoted(level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(level, tmp_path, monkeypatch, compiler=("echo no libc here >&2", "exit 1"))
    with pytest.raises(RecorderError, match=r"cc cannot compile the launch recorder: no libc here$"):
        Recorder(level, stand.cache)


CALL: dict[str, Any] = {"call": 0}
BODY: dict[str, Any] = {"kernel": "k", "grid": [1, 1, 1], "block": [1, 1, 1], "smem": 0, "attributes": [], "args": []}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"kernel": 5}, "str expected, int found"),
        ({"smem": "0"}, "int expected, str found"),
        ({"smem": True}, "int expected, bool found"),
        ({"grid": [1, 1.0, 1]}, "int expected, float found"),
        ({"grid": [1, 1]}, "not enough values"),
        ({"args": ["zz"]}, "non-hexadecimal"),
        ({"attributes": [[4, "00"]]}, "unpack requires a buffer of 16 bytes"),
    ],
)
def test_lines_that_a_launcher_has_disturbed_are_its_fault(changed: dict[str, Any], says: str) -> None:
    twice = [CALL, {"launch": {**BODY, **changed}}] * 2
    with pytest.raises(AuditError, match=f"the launcher disturbed the recorder's output: .*{says}") as caught:
        recorders.decode(twice, ())
    assert caught.value.code == "audit.launcher"
    assert len(recorders.decode([CALL, {"launch": BODY}] * 2, ())) == 1


def test_an_address_before_the_first_tensor_is_not_the_last_ones() -> None:
    raw = (5).to_bytes(8, "little").hex()
    assert recorders._argument(raw, (Argument("a", "bf16", (4, 8)), Argument("b", "bf16", (4, 8)))) == LaunchArg(
        "", 0, raw
    )
