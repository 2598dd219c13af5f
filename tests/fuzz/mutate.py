"""Changed copies of inputs: bytes, text by lines and words, JSON by its tree, ELF by its tables.

    mutate(shape, data, rng, seeds, words) -> bytes

Every change is drawn from `rng` alone, so that Hypothesis, Atheris and a plain loop share it.
"""

import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MOST = 1 << 18  # bytes of an input: most faults of parsers show below a few KB, slow ones by a few hundred
LONG = 1 << 16  # bytes that one repeated piece grows to
LARGEST = 1 << 1000  # of the integers that a float can nearly be
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 64, 127, 128, 255, 256, 4096, 65535, 65536, (1 << 31) - 1, 1 << 31)
NUMBERS += ((1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -(1 << 31), -(1 << 63))
WORD = re.compile(rb"[\w.$%]+|[^\w\s]")
ODD_TEXT = (
    "",
    "\n",
    "a\nb",
    "\ud800",
    "\0",
    "\u2028",
    "..",
    "/etc/x",
    "nan",
    "Infinity",
    "x" * 5000,
    "é",
    "٣",
    "{}",
    "-1",
)


def mutate(shape: str, data: bytes, rng: Random, seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """One changed copy, at most MOST bytes long."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        change: Callable[[bytes, Random, Sequence[bytes], Sequence[bytes]], bytes]
        change = _bytes if rng.random() < 0.15 else SHAPES[shape]
        data = change(data, rng, seeds, words)[:MOST]
    return data


def _at(size: int, rng: Random) -> int:
    return rng.randint(0, max(size, 0))


def _bytes(data: bytes, rng: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    i, kind = _at(len(data), rng), rng.randrange(7)
    j = min(len(data), i + rng.choice((1, 1, 2, 4, 8, 40, 400)))
    if kind == 0 and data:
        return data[: i - 1] + bytes([data[i - 1] ^ (1 << rng.randrange(8))]) + data[i:] if i else data
    if kind == 1:
        return data[:i] + bytes([rng.randrange(256)]) + data[i + 1 :]
    if kind == 2:
        return data[:i] + data[j:]
    if kind == 3:
        other = rng.choice(list(seeds) or [b""])
        k = _at(len(other), rng)
        return data[:i] + other[k : k + rng.choice((4, 40, 400))] + data[i:]
    if kind == 4:
        return data[:i] if rng.random() < 0.5 else data[i:]
    if kind == 5:
        return data[:i] + rng.choice(list(words) or [b"\0"]) + data[i:]
    return _repeated(data, i, j, rng)


def _repeated(data: bytes, i: int, j: int, rng: Random) -> bytes:
    """One piece over and over: what is slow for long inputs shows itself."""
    piece = data[i:j] or b"("
    times = rng.choice((2, 3, 20, 300, max(1, LONG // len(piece))))
    return data[:i] + (piece * times)[:LONG] + data[j:]


def _text(data: bytes, rng: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    lines, kind = data.split(b"\n"), rng.randrange(8)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(i, lines[j])
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == 3:
        lines[i : i + 1] = [lines[i]] * rng.choice((2, 20, 500))
    elif kind == 4:
        other = rng.choice(list(seeds) or [b""]).split(b"\n")
        k = rng.randrange(len(other))
        lines[i:i] = other[k : k + rng.choice((1, 3, 20))]
    else:
        lines[i] = _line(lines[i], rng, lines[j], words)
    return b"\n".join(lines)


def _line(line: bytes, rng: Random, other: bytes, words: Sequence[bytes]) -> bytes:
    found = list(WORD.finditer(line))
    if not found:
        return rng.choice(list(words) or [b"x"])
    match = rng.choice(found)
    kind = rng.randrange(6)
    if kind == 0:
        new = b""
    elif kind == 1:
        new = str(rng.choice(NUMBERS)).encode()
    elif kind == 2:
        new = rng.choice(list(words) or [b"x"])
    elif kind == 3:
        new = rng.choice(WORD.findall(other) or [b"y"])
    elif kind == 4:
        new = match[0] * rng.choice((2, 8, 200, LONG // max(1, len(match[0]))))
    else:
        new = match[0] + rng.choice(list(words) or [b" "])
    return line[: match.start()] + new + line[match.end() :]


def _json(data: bytes, rng: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, rng, seeds, words)
    places = [(None, None, value), *_places(value)]
    holder, key, old = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0 and isinstance(holder, dict | list):
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[_odd_text(rng)] = holder.pop(key)
    elif kind == 2:
        value = _put(value, holder, key, rng.choice(places)[2])
    elif kind == 3 and isinstance(old, list) and old:
        old.extend(old[:1] * rng.choice((1, 3, 100)))
    elif kind == 4 and isinstance(old, int | float):
        near = (old + 1, -old, old * 2) if abs(old) > LARGEST else (old + 1, -old, old * 2, float(old))
        value = _put(value, holder, key, rng.choice((*NUMBERS, *near)))
    else:
        value = _put(value, holder, key, _odd(rng))
    try:
        return json.dumps(value, ensure_ascii=rng.random() < 0.8).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # it now holds itself
        return data


def _places(value: Any) -> list[tuple[Any, Any, Any]]:
    """(holder, key, value) of every value within."""
    found, todo = [], [value]
    while todo and len(found) < 4000:
        holder = todo.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, item in pairs:
            found.append((holder, key, item))
            todo.append(item)
    return found


def _put(whole: Any, holder: Any, key: Any, new: Any) -> Any:
    if holder is None:
        return new
    holder[key] = new
    return whole


def _odd_text(rng: Random) -> str:
    return rng.choice(ODD_TEXT)


def _odd(rng: Random) -> Any:
    kind = rng.randrange(8)
    if kind == 0:
        return _odd_text(rng)
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice((float("nan"), float("inf"), 1e308, -0.0, 5e-324, 10**400))
    if kind == 3:
        return rng.choice((None, True, False))
    if kind == 4:
        return rng.choice(([], {}, [[]], {"": {}}, [None], {"schema": 1}))
    deep: Any = rng.choice((0, "x", {}))
    depth = rng.choice((5, 60, 400, 900)) if kind == 5 else 0
    for _ in range(depth):
        deep = [deep] if rng.random() < 0.7 else {"a": deep}
    return deep if depth else rng.choice((" ", "x" * 300, 7))


def _elf(data: bytes, rng: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """A field of the header, of a section's header or of a section's content gets a telling value."""
    images = [m.start() for m in re.finditer(b"\x7fELF", data)]
    if not images or len(data) < images[0] + 64:
        return _bytes(data, rng, seeds, words)
    image = rng.choice(images)
    out = bytearray(data)
    if image + 64 > len(out):
        return _bytes(data, rng, seeds, words)
    (table,) = struct.unpack_from("<Q", out, image + 40)
    (count,) = struct.unpack_from("<H", out, image + 60)
    kind = rng.randrange(5)
    if kind == 0:
        offset, size = rng.choice(
            ((16, 2), (18, 2), (32, 8), (40, 8), (48, 4), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2))
        )
        return _stored(out, image + offset, size, rng)
    section = image + table + 64 * rng.randrange(max(1, count))
    if section + 64 > len(out):
        return _bytes(data, rng, seeds, words)
    if kind in (1, 2):
        offset, size = rng.choice(((0, 4), (4, 4), (8, 8), (24, 8), (32, 8), (40, 4), (44, 4)))
        return _stored(out, section + offset, size, rng)
    if kind == 3:  # one section's header in place of another's
        other = image + table + 64 * rng.randrange(max(1, count))
        out[section : section + 64] = out[other : other + 64].ljust(64, b"\0")
        return bytes(out)
    start, length = struct.unpack_from("<QQ", out, section + 24)
    if not 0 < length < len(out):
        return _bytes(data, rng, seeds, words)
    return _stored(out, image + start + rng.randrange(length) // 4 * 4, rng.choice((1, 2, 4, 8)), rng)


def _stored(out: bytearray, at: int, size: int, rng: Random) -> bytes:
    if at + size > len(out):
        return bytes(out)
    old = int.from_bytes(out[at : at + size], "little")
    new = rng.choice((*NUMBERS, old + 1, old - 1, old * 2, len(out), len(out) - 1, rng.randrange(1 << 16)))
    out[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(out)


SHAPES: dict[str, Callable[[bytes, Random, Sequence[bytes], Sequence[bytes]], bytes]] = {
    "bytes": _bytes,
    "text": _text,
    "json": _json,
    "elf": _elf,
}
