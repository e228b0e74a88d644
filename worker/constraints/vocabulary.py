"""The vocabulary of a model, as far as constraints need it, so that this room knows no model."""

import re
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.wire.jobs import TokenId

_TOKEN_ID = re.compile(r"<\[(\d{1,10})\]>")

SPECIAL = b"\xff"
"""The byte before a token's name: the token is not text, and only its name in a grammar allows it."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The functions may be called on any thread for as long as the model lives."""

    pieces: Seq[bytes]
    """The bytes of each token; empty for a token that is no text."""
    ends: NDArray[np.intp]
    """The tokens that end an answer."""
    piece: Callable[[TokenId], bytes]
    """The bytes of a token in an answer; empty for a token that is no text."""
    name: Callable[[TokenId], bytes]
    """The vocabulary's spelling of a token, also of one that is not text."""
    token_of: Callable[[str], TokenId | None]
    """The one token that a text is, control tokens included."""
    spell: Callable[[bytes], Seq[int]]
    """A text in tokens, as the tokenizer splits it."""


class Tokens:
    """The model's vocabulary in the form that `llguidance.TokenizerWrapper` asks for; it is called with bytes."""

    bos_token_id = None

    def __init__(self, words: Vocabulary) -> None:
        self._words = words
        self.n_vocab = len(words.pieces)
        self.tokens = [piece or SPECIAL + words.name(TokenId(token)) for token, piece in enumerate(words.pieces)]
        self.special_token_ids = [i for i, spelled in enumerate(self.tokens) if spelled.startswith(SPECIAL)]
        self.own_ends = words.ends
        self.ends: list[int] = words.ends.tolist()
        if not self.ends:
            # The library needs one. No mask that is read reaches as far.
            self.ends = [len(self.tokens)]
            self.tokens.append(SPECIAL + b"<no end>")
        self.eos_token_id = self.ends[0]
        self.token_of_byte = {spelled[0]: token for token, spelled in enumerate(self.tokens) if len(spelled) == 1}
        self.bits = np.zeros(-(-len(self.tokens) // 32), np.int32)
        """The memory that the step thread writes masks to."""

    def piece(self, token: int) -> bytes:
        return self._words.piece(TokenId(token))

    def token_of(self, name: str) -> TokenId | None:
        """The token written as `<think>` or `<[12]>`; None where there is none, or it has no text."""
        number = _TOKEN_ID.fullmatch(name)
        token = TokenId(int(number[1])) if number else self._words.token_of(name)
        if token is None or token >= self.n_vocab or not self.piece(token):
            return None
        return token

    def name(self, token: int) -> bytes:
        return self._words.name(TokenId(token))

    def spelled(self, data: bytes) -> list[int]:
        """Any bytes in tokens: as the tokenizer splits them if they are a text, else one by one; empty if there is no
        spelling."""
        found = list(self._words.spell(data))
        if found or not all(value in self.token_of_byte for value in data):
            return found
        return [self.token_of_byte[value] for value in data]

    def __call__(self, data: bytes) -> list[int]:
        """The library takes no tokens for nothing left to spell, and computes the mask of a later place."""
        return self.spelled(data)
