"""A tokenizer for a model of random weights, one token a byte, and rules for answers that can be checked without vLLM.

vLLM refuses structured output without a tokenizer, and a model of random weights has none. This one knows 256 of the
model's tokens; a grammar forbids all others. What an answer must be is checked here by other means than a grammar's.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

SPECIAL = ("<pad>", "<bos>", "<eos>")  # ids 0, 1 and 2, as the model's configuration has them
END = 2
COLOURS = r"(red|green|blue)-[0-9]{4}"
WINDS = ("north", "south", "east", "west")
WORDS = ("one", "two", "three")
# No part of it may grow: an answer of random weights ends only where it must.
OBJECT = {
    "type": "object",
    "properties": {
        "yes": {"type": "boolean"},
        "word": {"enum": list(WORDS)},
        "code": {"type": "string", "pattern": "^[a-f]{3}$"},
    },
    "required": ["yes", "word", "code"],
    "additionalProperties": False,
}


def characters() -> list[str]:
    """Byte -> the printable character that stands for it in a byte-level vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def write_tokenizer(folder: Path) -> Path:
    """The two files that Hugging Face's loader reads."""
    folder.mkdir(parents=True, exist_ok=True)
    known = [*SPECIAL, *characters()]
    marks = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {c: i for i, c in enumerate(known)}, "merges": [], "byte_fallback": False}
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": c, **marks} for i, c in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model | {"dropout": None, "unk_token": None, "fuse_unk": False},
    }
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


def text(tokens: Sequence[int]) -> str | None:
    """What the tokens say up to the one that ends an answer; None where it does not end, or a token says nothing."""
    said = list(tokens)
    if not said or said.pop() != END or any(not 0 <= t - len(SPECIAL) < 256 for t in said):
        return None
    return bytes(t - len(SPECIAL) for t in said).decode(errors="replace")


def of_pattern(tokens: Sequence[int]) -> bool:
    said = text(tokens)
    return said is not None and re.fullmatch(COLOURS, said) is not None


def of_choice(tokens: Sequence[int]) -> bool:
    return text(tokens) in WINDS


def of_object(tokens: Sequence[int]) -> bool:
    try:
        found = json.loads(text(tokens) or "")
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and set(found) == set(OBJECT["required"])
        and isinstance(found["yes"], bool)
        and found["word"] in WORDS
        and isinstance(found["code"], str)
        and re.fullmatch("[a-f]{3}", found["code"]) is not None
    )
