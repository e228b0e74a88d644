"""JSON schemas asked about byte by byte: which texts one lets through, and texts that it lets come up by chance.

The vocabulary has a token for each byte, so that any text can be tried and every turn taken.
"""

import codecs
import json
import random
from dataclasses import dataclass
from typing import Any

import jsonschema
import llguidance
import numpy as np
from numpy.typing import NDArray

from worker.constraints.constraint import LIMITS_OF, Unsupported, compiled, json_options

END = 256


def is_valid(schema: Any, value: Any) -> bool:
    """True if the package `jsonschema` takes the value."""
    return bool(jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).is_valid(value))


class _Bytes:
    """A tokeniser for LLTokenizer: a token for each byte, an end, and a token for each run of an `a`."""

    def __init__(self, longest_run: int) -> None:
        self.eos_token_id, self.bos_token_id = END, None
        self.tokens = [*(bytes([value]) for value in range(256)), b"\xff<end>"]
        self.tokens += [b"a" * n for n in range(2, longest_run + 1)]
        self.special_token_ids = [END]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer(longest_run: int = 1) -> llguidance.LLTokenizer:
    """A vocabulary of bytes, and of runs of the letter a from two to so many."""
    tokens = _Bytes(longest_run)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokens), n_vocab=len(tokens.tokens), eos_token=END)


TOKENIZER = byte_tokenizer()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a schema cannot be enforced."""

    message: str


def unchecked(schema: Any) -> "Texts | Refusal":
    """The texts that the library alone makes of a schema."""
    try:
        source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=json_options(schema))
    except ValueError as refused:
        return Refusal(str(refused))
    matcher = llguidance.LLMatcher(TOKENIZER, source, log_level=0, limits=LIMITS_OF["json_schema"])
    return Refusal(matcher.get_error()) if matcher.is_error() else Texts(matcher)


def texts(schema: Any) -> "Texts | Refusal":
    """The texts of a schema as the worker enforces it."""
    try:
        return Texts(compiled(TOKENIZER, "json_schema", json.dumps(schema), lambda _: None))
    except Unsupported as refused:
        return Refusal(str(refused))


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts that a schema lets through."""

    _matcher: llguidance.LLMatcher

    def have(self, text: str) -> bool:
        """True if the text as a whole is one of them."""
        follower = self.follow()
        return follower.go(text.encode()) and follower.may_end

    def any(self, rng: random.Random, *, max_bytes: int = 1000) -> str | None:
        """One of them, each byte drawn from those allowed; None where it did not end in time."""
        follower, character, text = self.follow(), b"", b""
        for _ in range(max_bytes):
            allowed = follower.allowed()
            following = [value for value in range(256) if allowed[value] and _is_begun(character + bytes([value]))]
            assert following or follower.may_end, f"nothing may follow {text!r}: {follower.error}"
            if follower.may_end and (not following or rng.random() < 0.5):
                return text.decode()
            # The choice prefers the notation, so that strings end and numbers go on.
            notation = [value for value in following if value in b'"}],: 0123456789']
            character += bytes([rng.choice(notation if notation and rng.random() < 0.7 else following)])
            assert follower.go(character[-1:])
            text += character[-1:]
            character = b"" if character.decode(errors="ignore") else character
        return None

    def follow(self) -> "Follower":
        return Follower(self._matcher.deep_copy())


@dataclass(frozen=True, slots=True)
class Follower:
    """A point in one text."""

    _matcher: llguidance.LLMatcher

    @property
    def may_end(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def error(self) -> str:
        return self._matcher.get_error()

    def allowed(self) -> NDArray[np.bool_]:
        """bool[256]: the bytes that may follow."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little")[:256].astype(np.bool_)

    def go(self, data: bytes) -> bool:
        """Go on by the bytes if all may follow, else stay."""
        n_taken = self._matcher.try_consume_tokens(list(data))
        if n_taken < len(data):
            self._matcher.rollback(n_taken)
        return n_taken == len(data)


def _is_begun(character: bytes) -> bool:
    """True if some bytes after these make it one UTF-8 character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(character)
    except UnicodeDecodeError:
        return False
    return True
