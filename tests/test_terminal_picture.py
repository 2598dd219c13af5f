"""The README's picture of a terminal is drawn from the recording of a real session; the screen shows what was said."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.checkout import ROOT

PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture(scope="module")
def terminal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("terminal", ROOT / "benchmarks" / "terminal.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # where dataclasses look up their module
    spec.loader.exec_module(made)
    return made


def shown(screen: Any) -> list[str]:
    return ["".join(char for char, _ in line).rstrip() for line in screen.last()]


def written(terminal: ModuleType, text: str, columns: int = 10, rows: int = 4) -> Any:
    screen = terminal.Screen(columns, rows)
    screen.write(text)
    return screen


def test_the_readmes_picture_is_drawn_from_the_recording(terminal: ModuleType) -> None:
    lines = terminal.read(PICTURES / "propose.cast.xz")
    assert terminal.drawn(lines) == (PICTURES / "propose.svg").read_text(encoding="utf-8")
    assert "docs/pictures/propose.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
    head = json.loads(lines[0])
    assert head["command"].startswith("kgen propose ") and 0 < head["picture"] < json.loads(lines[-1])[0]
    live, ended = shown(terminal.replayed(lines)), shown(terminal.replayed(lines, float("inf")))
    assert any(line.startswith("funnel ") for line in live), "a moment of the live screen"
    assert not any(line.startswith("funnel ") for line in ended) and ended[-1].startswith("next: ")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("one\r\ntwo\x1b[2K\rthree\x1b[1A\x1b[2K\rfour", ["four", "three"]),
        ("abcdef\r\x1b[1A\x1b[K", []),
        ("abc\rX", ["Xbc"]),
        ("0123456789abc", ["0123456789", "abc"]),
        ("a\r\nb\r\nc\r\nd\r\ne", ["b", "c", "d", "e"]),
        ("a\r\nb\r\nc\r\nd\r\ne\x1b[9A\rX", ["X", "c", "d", "e"]),
        ("a\r\nb\x1b[1A\r\x1b[J", []),
        ("\x1b[?25lx\x1b[?25h\x1b]0;title\x07y", ["xy"]),
    ],
)
def test_the_screen_holds_what_a_terminal_would(terminal: ModuleType, text: str, lines: list[str]) -> None:
    assert shown(written(terminal, text)) == lines


def test_colours_are_those_that_were_set_and_end_where_they_are_taken_back(terminal: ModuleType) -> None:
    (line,) = written(terminal, "\x1b[1;31ma\x1b[0mb\x1b[32mc\x1b[39md").last()
    plain = terminal.Style()
    assert [s for _, s in line] == [
        terminal.Style(terminal.COLOURS[1], bold=True), plain, terminal.Style(terminal.COLOURS[2]), plain,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["\x1b[3;4H", "\x1b[2J", "\x1b[?1049h", "\x1bM"])
def test_what_the_screen_does_not_know_is_an_error_and_no_wrong_picture(terminal: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="does not know"):
        written(terminal, text)


def test_a_command_is_recorded_on_a_terminal_of_its_own_with_its_exit_status(
    terminal: ModuleType, tmp_path: Path
) -> None:
    said = "import os, sys; print('µ<', sys.stdout.isatty(), *os.get_terminal_size()); sys.exit(3)"
    out = tmp_path / "s.cast.xz"
    assert terminal.main(["record", str(out), "--", sys.executable, "-I", "-c", said]) == 3
    assert shown(terminal.replayed(terminal.read(out))) == [f"µ< True {terminal.COLUMNS} {terminal.ROWS}"]
    assert terminal.main(["draw", str(out), str(tmp_path / "s.svg"), "--at", "999"]) == 0
    assert json.loads(terminal.read(out)[0])["picture"] == 999
    assert ">µ&lt; True" in (tmp_path / "s.svg").read_text()
