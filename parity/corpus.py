"""The text that is compared: a long one, hard strings for tokenizers, and prompts. All written for this project.

Pure.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_FORM = re.compile(
    rb"[\x00-\x7f]|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|[\x80-\xff]"
)
"""The bytes that llama.cpp accepts as one code point: it checks only lengths and continuation bytes."""
_LEAD_BITS = {1: 0x7F, 2: 0x1F, 3: 0x0F, 4: 0x07}
_REPLACEMENT = 0xFFFD
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class HardText:
    """A string for the tokenizer level."""

    name: str
    """Its section and key in hard_texts.toml."""
    data: bytes
    """UTF-8, or meant to be none."""


def text() -> str:
    """The evaluation text: about 4,600 tokens of prose, code, arithmetic and a little of other languages."""
    return _read("text.txt")


def hard_texts() -> tuple[HardText, ...]:
    """The hard texts in the order of the file."""
    sections: dict[str, dict[str, Any]] = tomllib.loads(_read("hard_texts.toml"))
    return tuple(
        HardText(f"{section}.{key}", _data(entry))
        for section, texts in sections.items()
        for key, entry in texts.items()
    )


def prompts() -> tuple[str, ...]:
    """Eight, of different kinds, each of at least 34 tokens."""
    return tuple(str(prompt) for prompt in tomllib.loads(_read("prompts.toml")).values())


def digest() -> str:
    """SHA-256 of all texts as they are used, in hex; comments and layout of the files do not count."""
    total = hashlib.sha256()
    parts = [text().encode(), *(part for hard in hard_texts() for part in (hard.name.encode(), hard.data))]
    for part in (*parts, *(prompt.encode() for prompt in prompts())):
        # With its length in front, no two corpora are the same bytes.
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()


def decode(data: bytes) -> str:
    """Bytes as the text that llama.cpp takes them for, so that a reference tokenizer can be given the same.

    llama.cpp reads code points by their lengths alone: a byte that begins or goes on with none is one U+FFFD (one for
    each byte, not for each run as Python has it), and an overlong form is the character it spells. It lets surrogates
    be, which no text can hold: U+FFFD here, and `has_reference` is false.
    Raises: ValueError for a form beyond U+10FFFF, on which llama.cpp ends the process.
    Source: unicode_cpts_from_utf8.
    """
    return "".join(chr(_REPLACEMENT if point in _SURROGATES else point) for point in _code_points(data))


def has_reference(data: bytes) -> bool:
    """True if `data` is a text that another tokenizer accepts, i.e. without surrogates."""
    return not any(point in _SURROGATES for point in _code_points(data))


def _code_points(data: bytes) -> Iterator[int]:
    for form in _FORM.findall(data):
        point = form[0] & _LEAD_BITS[len(form)] if len(form) > 1 or form < b"\x80" else _REPLACEMENT
        for byte in form[1:]:
            point = point << 6 | byte & 0x3F
        yield point


def _read(name: str) -> str:
    return files("parity").joinpath("corpus", name).read_bytes().decode()


def _data(entry: str | Mapping[str, Any]) -> bytes:
    """An entry of hard_texts.toml; the file's head says which forms there are."""
    match entry:
        case str():
            return entry.encode()
        case {"bytes": str(digits)}:
            return bytes.fromhex(digits)
        case {"text": str(part), "times": int(times)}:
            return part.encode() * times
    raise ValueError(f"hard_texts.toml: {entry!r} is not a text")
