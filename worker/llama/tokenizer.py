"""One model's vocabulary: a text becomes tokens, and a token becomes bytes.

Owns what a text is checked for before the library reads it. Knows nothing of weights. Safe on any thread, also while
another decodes.
"""

import ctypes
import functools
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.models.facts.spelling import Gaps, Spelling, Unspellable
from worker.wire.jobs import TokenId

_PIECE_BYTES = 64
"""Most pieces are shorter; a longer one costs a second call."""
_CONTROL = capi.LLAMA_TOKEN_ATTR_CONTROL | capi.LLAMA_TOKEN_ATTR_UNKNOWN
"""The tokens that parse_special=False leaves alone. Source: tokenizer_st_partition (llama-vocab.cpp)."""
_C_SPACES = " \t\n\v\f\r"
"""C's isspace, for tokens that take the space beside them."""

SHALLOW_CHARS = 1024
STACK_BYTES_PER_CHAR = 1024
_DEFAULT_STACK_BYTES = 8 * 2**20
"""Vocabularies without a splitter of their own are split by std::regex, whose matcher calls itself for every character
of a run: 32,768 digits end the process on a stack of 8 MiB (Falcon's, DeepSeek's, Tekken's, GPT-4o's expressions), and
pass on 12 MiB. Source: unicode_regex_split_stl (unicode.cpp)."""


class Tokenizer:
    """A Model is one. After `Model.close` every method raises ValueError."""

    def __init__(self, vocab: Any, gaps: Gaps | None) -> None:
        """`gaps`: what the check of the file found missing; without it llama.cpp meets every text. Any: an opaque
        pointer."""
        self._vocab = vocab
        self.n_vocab = int(capi.llama_vocab_n_tokens(vocab))
        self._bos = int(capi.llama_vocab_bos(vocab))
        self._spelling = None if gaps is None else Spelling(gaps, self._dividers)
        self._has_bos = bool(capi.llama_vocab_get_add_bos(vocab)) and self._bos >= 0

    @property
    def vocab(self) -> Any:
        """The vocabulary, for this room only; it lives and dies with the model. Any: an opaque pointer."""
        if self._vocab is None:
            raise ValueError("the model is closed")
        return self._vocab

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[TokenId]:
        """Raw model input: special tokens in it are parsed; BOS comes first where the metadata says so, never twice.
        Either can be left out. Raises: Unspellable."""
        tokens = self._tokens_of(text, parse_special=parse_special)
        return self._with_bos(tokens) if add_special else tokens

    def tokenize_around(self, text: str, controls: Iterable[tuple[int, int]]) -> list[TokenId]:
        """Tokenize as `tokenize` does, but read control tokens only at the places [start, end) in the text, in order,
        each of which is the name of one. The library reads what is between them as usual, names of others as letters.
        Raises: Unspellable."""
        tokens: list[TokenId] = []
        at = 0
        for start, end in controls:
            token = self.controls[text[start:end]]
            attributes = int(capi.llama_vocab_get_attr(self.vocab, token))
            before = text[at:start]
            before = before.rstrip(_C_SPACES) if attributes & capi.LLAMA_TOKEN_ATTR_LSTRIP else before
            tokens += self._tokens_of(before, at, parse_special=False)
            tokens.append(token)
            at = end
            while attributes & capi.LLAMA_TOKEN_ATTR_RSTRIP and text[at : at + 1] and text[at] in _C_SPACES:
                at += 1
        return self._with_bos(tokens + self._tokens_of(text[at:], at, parse_special=False))

    def _tokens_of(self, text: str, start: int = 0, *, parse_special: bool) -> list[TokenId]:
        """All of a text, which begins at `start` in what was sent, or Unspellable."""
        tokens = self._tokenize_all(text.encode(), len(text), start=start, parse_special=parse_special)
        if self._spelling is not None:
            self._spelling.check_nothing_lost(text, functools.partial(self._said_by, tokens), start)
        if min(tokens, default=0) < 0:
            place = next((at for at, character in enumerate(text) if self._is_unknown(character)), 0)
            raise Unspellable(text[place], start + place)
        return tokens

    def _said_by(self, tokens: Iterable[TokenId]) -> bytes:
        return b"".join(self._named_piece(token) for token in tokens if token >= 0)

    def _is_unknown(self, character: str) -> bool:
        """True if the vocabulary has neither a token for it nor one for unknown text."""
        return min(self._tokenize_all(character.encode(), 1, parse_special=False), default=0) < 0

    def _with_bos(self, tokens: list[TokenId]) -> list[TokenId]:
        return [TokenId(self._bos), *tokens] if self._has_bos and tokens[:1] != [self._bos] else tokens

    def detokenize(self, tokens: Iterable[TokenId]) -> bytes:
        """The bytes of the tokens, special ones by their names. A space that the vocabulary puts before a text is left
        out where the first token has it. Raises: as `piece`."""
        data = b"".join(map(self._named_piece, tokens))
        return data.removeprefix(b" ") if self._has_space_before else data

    @functools.cached_property
    def _has_space_before(self) -> bool:
        """True if the vocabulary puts a space before a text."""
        try:
            return b"".join(map(self.piece, self._tokens_of("a", parse_special=False))) == b" a"
        except Unspellable:
            return False

    def _dividers(self, parse_special: bool) -> list[str]:  # noqa: FBT001 - a question with two answers
        """The texts of the tokens that are found in a text before it is read."""
        vocab, wanted = self.vocab, capi.LLAMA_TOKEN_ATTR_USER_DEFINED | (_CONTROL if parse_special else 0)
        return [
            text.decode(errors="surrogateescape")
            for token, text in enumerate(self.token_texts())
            if capi.llama_vocab_get_attr(vocab, token) & wanted
        ]

    @functools.cached_property
    def controls(self) -> dict[str, TokenId]:
        """The control tokens by their names, as the library finds them in a text; asked once, some tens of
        milliseconds."""
        vocab = self.vocab
        controls: dict[str, TokenId] = {}
        for token in range(self.n_vocab):
            if capi.llama_vocab_get_attr(vocab, token) & _CONTROL:
                controls.setdefault(capi.llama_vocab_get_text(vocab, token).decode(errors="replace"), TokenId(token))
        return controls

    @functools.cached_property
    def words(self) -> dict[str, TokenId]:
        """The texts that have a token of their own by the vocabulary's definition, and are text all the same."""
        vocab = self.vocab
        return {
            text.decode(errors="replace"): TokenId(token)
            for token, text in enumerate(self.token_texts())
            if capi.llama_vocab_get_attr(vocab, token) & capi.LLAMA_TOKEN_ATTR_USER_DEFINED
        }

    def token_texts(self) -> list[bytes]:
        """Every token's text as the vocabulary spells it, names of control tokens included; some tens of
        milliseconds."""
        vocab = self.vocab
        return [capi.llama_vocab_get_text(vocab, token) for token in range(self.n_vocab)]

    def _tokenize_all(self, data: bytes, n_chars: int, *, start: int = 0, parse_special: bool = True) -> list[TokenId]:
        """A long text on a stack that is deep enough for it; its pages are touched only where they are needed. Raises:
        Unspellable, where the library would not survive the text; what it leaves out is not looked for."""
        if self._spelling is not None:
            self._spelling.check(data.decode(errors="surrogateescape"), start, parse_special=parse_special)
        if n_chars <= SHALLOW_CHARS:
            return self._tokenize(data, len(data) + 1, parse_special=parse_special)
        found: list[list[TokenId]] = []

        def tokenize() -> None:
            found.append(self._tokenize(data, len(data) + 1, parse_special=parse_special))

        thread = threading.Thread(target=tokenize, name="tokenizer")
        before = threading.stack_size(-(-n_chars * STACK_BYTES_PER_CHAR // 2**20) * 2**20 + _DEFAULT_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        thread.join()
        (tokens,) = found
        return tokens

    def _tokenize(self, data: bytes, n_max: int, *, parse_special: bool) -> list[TokenId]:
        buffer = (capi.llama_token * n_max)()
        n = int(capi.llama_tokenize(self.vocab, data, len(data), buffer, n_max, False, parse_special))
        return self._tokenize(data, -n, parse_special=parse_special) if n < 0 else buffer[:n]

    def piece(self, token: TokenId) -> bytes:
        """The token's raw bytes, which need not be whole characters; a control, unknown or unused token has none.

        Raises: ValueError for an id outside the vocabulary (the library would abort).
        """
        self._check(token)
        return self.pieces[token]

    @functools.cached_property
    def pieces(self) -> list[bytes]:
        """`piece` of every token; asked once, some tenths of a second."""
        vocab, size, to_piece = self.vocab, _PIECE_BYTES, capi.llama_token_to_piece
        buffer = ctypes.create_string_buffer(size)
        pieces = []
        for token in range(self.n_vocab):
            n = to_piece(vocab, token, buffer, size, 0, False)
            pieces.append(ctypes.string_at(buffer, n) if n >= 0 else self._piece(token, -n))
        return pieces

    def _named_piece(self, token: int) -> bytes:
        """Return the `piece` of a token, but a control token's name."""
        self._check(token)
        return self._piece(token, _PIECE_BYTES, is_named=True)

    def _piece(self, token: int, n_max: int, *, is_named: bool = False) -> bytes:
        buffer = ctypes.create_string_buffer(n_max)
        n = int(capi.llama_token_to_piece(self.vocab, token, buffer, n_max, 0, is_named))
        return self._piece(token, -n, is_named=is_named) if n < 0 else buffer.raw[:n]

    def is_end(self, token: TokenId) -> bool:
        """Return whether the vocabulary's token ends generation, as EOS and EOT do. Raises: as `piece`."""
        self._check(token)
        return token in self._end_ids

    @functools.cached_property
    def ends(self) -> NDArray[np.intp]:
        """The ids of all tokens that end generation, ascending; asked once, some tens of milliseconds."""
        vocab = self.vocab
        ends = [token for token in range(self.n_vocab) if capi.llama_vocab_is_eog(vocab, token)]
        return np.array(ends, dtype=np.intp)

    @functools.cached_property
    def _end_ids(self) -> frozenset[int]:
        return frozenset(self.ends.tolist())

    def _check(self, token: int) -> None:
        assert self.vocab
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token {token} is outside the vocabulary of {self.n_vocab}")
