"""The verdicts of llama.cpp's grammar sampler and llguidance on one grammar, over one small vocabulary.

The vocabulary has a token for each byte and one for each of OTHERS, so that texts can be asked about character by
character: llama.cpp refuses the first byte of a character where a class like [^é] excludes another that begins with it.
Knows nothing of where grammars and texts come from.
"""

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
from llama_cpp import llama_cpp as capi
from llguidance import LLMatcher, LLTokenizer

from tests.constraints.bytewise import byte
from tests.llama.tiny import END, TOKENS
from worker.llama.model import Model
from worker.wire.jobs import TokenId

OTHERS = "é\x85\u2028ぁゟァ漢、〾✅❌🔵🟠😀\U0010ffff"


def token_of_character(character: str) -> TokenId:
    return byte(ord(character)) if character.isascii() else TokenId(len(TOKENS) + OTHERS.index(character))


ASKED = [END, *(byte(value) for value in range(1, 128)), *map(token_of_character, OTHERS)]
"""The end, which may come exactly where the text may end, and a token for each character but NUL, which ends
llama.cpp's pieces."""

Verdict = frozenset[int]
"""The members of ASKED that may come."""


def _tokens_of(character: str) -> list[TokenId]:
    if character.isascii() or character in OTHERS:
        return [token_of_character(character)]
    return [byte(value) for value in character.encode("utf-8", "surrogateescape")]


class Sampler:
    """llama.cpp's."""

    def __init__(self, model: Model, gbnf: str) -> None:
        """Raises: ValueError where llama.cpp's parser refuses the grammar."""
        self._handle: Any = capi.llama_sampler_init_grammar(model.vocab, gbnf.encode(), b"root")
        if not self._handle:
            raise ValueError("llama.cpp refuses the grammar")

    def verdict(self) -> Verdict:
        rows = (capi.llama_token_data * len(ASKED))(*((token, 0.0, 0.0) for token in ASKED))
        array = capi.llama_token_data_array(rows, len(ASKED), -1, False)
        capi.llama_sampler_apply(self._handle, ctypes.byref(array))
        return frozenset(int(row.id) for row in rows if row.logit == 0)

    def accept(self, token: int) -> None:
        capi.llama_sampler_accept(self._handle, token)

    def close(self) -> None:
        capi.llama_sampler_free(self._handle)


@dataclass
class _Tokens:
    """A tokeniser for LLTokenizer (llguidance.TokenizerWrapper)."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int = END
    bos_token_id: int | None = None

    def __call__(self, text: bytes | str) -> list[int]:
        """The library asks for the tokens of a text if only that text can come next."""
        text = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
        return [token for character in text for token in _tokens_of(character)]


def tokenizer_of(model: Model) -> LLTokenizer:
    """The token of 300 letters is left out: `([x]*)*` meets the library's limits over it, and this is about meaning."""
    pieces = [model.piece(TokenId(token)) for token in range(model.n_vocab)]
    special = [token for token, piece in enumerate(pieces) if not 1 <= len(piece) <= 4]
    # The byte 0xFF marks what no text can have.
    tokens = [b"\xff<%d>" % token if token in special else piece for token, piece in enumerate(pieces)]
    return LLTokenizer(llguidance.TokenizerWrapper(_Tokens(tokens, special)), n_vocab=model.n_vocab)


class Matcher:
    """llguidance's."""

    def __init__(self, tokenizer: LLTokenizer, lark: str) -> None:
        self._matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def verdict(self) -> Verdict:
        can_end = self._matcher.is_accepting()
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            # Nothing may come, not even the end.
            assert "NoExtension" in self._matcher.get_error()
            return frozenset()
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        # `!<[7]>` is any other token, the end too. That it may come is only said by `is_accepting`.
        return frozenset(token for token in ASKED if (can_end if token == END else bits[token]))

    def accept(self, token: int) -> None:
        assert self._matcher.consume_token(token), self._matcher.get_error()


def is_taken(one: Sampler | Matcher, tokens: list[TokenId]) -> bool:
    """True if the grammar takes these as a whole text."""
    for token in tokens:
        if token not in one.verdict():
            return False
        one.accept(token)
    return END in one.verdict()


def check_walk(sampler: Sampler, matcher: Matcher, n_tokens: int, chance: random.Random) -> None:
    """Go a random way that llama.cpp allows, and compare all that may come at each step."""
    for _ in range(n_tokens):
        expected = sampler.verdict()
        assert matcher.verdict() == expected
        ways = sorted(expected - {END})
        if not ways:
            return
        token = chance.choice(ways)
        sampler.accept(token)
        matcher.accept(token)
