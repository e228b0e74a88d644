"""The tokens of one model's vocabulary, as the file has them: their bytes, names and kinds. Safe on any thread."""

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.wire.jobs import TokenId
from worker.wire.prompts import Infill

_PIECE_BYTES = 64
"""Most pieces are shorter; a longer one costs a second call."""
CONTROL = capi.LLAMA_TOKEN_ATTR_CONTROL | capi.LLAMA_TOKEN_ATTR_UNKNOWN
"""The tokens that parse_special=False leaves alone. Source: tokenizer_st_partition (llama-vocab.cpp)."""

_REPOSITORY, _THIS_FILE = "myproject\n", "filename\n"
"""The names that llama-server gives to a repository and to the file with the gap. No request names them."""
_NO_SEPARATOR = "\n\n--- snippet ---\n\n"
"""The text between files if the vocabulary has no token for it, the same as in llama-server."""


class InfillMarks(NamedTuple):
    """The tokens around a gap in a text, and those before a repository's name and before each file."""

    prefix: TokenId
    suffix: TokenId
    middle: TokenId
    repository: TokenId | None
    file: TokenId | None

    def around(self, gap: Infill, text: Callable[[str], list[TokenId]], bos: list[TokenId]) -> list[TokenId]:
        """The tokens in llama-server's order: other files, then the text before the gap, after it, and the gap. `text`
        gives the tokens of a text."""
        before: list[TokenId] = []
        if gap.files is not None and self.repository is not None:
            before += [self.repository, *text(_REPOSITORY)]
        for name, content in gap.files or ():
            before += text(_NO_SEPARATOR) if self.file is None else [self.file, *text(f"{name}\n")]
            before += text(content)
        if gap.files is not None and self.file is not None:
            before += [self.file, *text(_THIS_FILE)]
        around = [self.prefix, *text(gap.prefix), *text(gap.begun), self.suffix, *text(gap.suffix), self.middle]
        return [*before, *bos, *around]


class TokenTable:
    """A Model is one. After `Model.close` every method raises ValueError."""

    def __init__(self, vocab: Any) -> None:
        """Any: an opaque pointer."""
        self._vocab = vocab
        self.n_vocab = int(capi.llama_vocab_n_tokens(vocab))

    @property
    def vocab(self) -> Any:
        """The vocabulary, for this room only; it lives and dies with the model. Any: an opaque pointer."""
        if self._vocab is None:
            raise ValueError("the model is closed")
        return self._vocab

    @functools.cached_property
    def controls(self) -> dict[str, TokenId]:
        """The control tokens by their names, as the library finds them in a text: the first of a name counts."""
        controls: dict[str, TokenId] = {}
        for token, name in self._with_attribute(CONTROL):
            controls.setdefault(name.decode(errors="replace"), token)
        return controls

    @functools.cached_property
    def words(self) -> dict[str, TokenId]:
        """The texts that have a token of their own by the vocabulary's definition, and are text all the same."""
        found = self._with_attribute(capi.LLAMA_TOKEN_ATTR_USER_DEFINED)
        return {text.decode(errors="replace"): token for token, text in found}

    def _with_attribute(self, wanted: int) -> Iterator[tuple[TokenId, bytes]]:
        """Yield the tokens that have one of the attributes, with their texts; some tens of milliseconds."""
        vocab = self.vocab
        for token in map(TokenId, range(self.n_vocab)):
            if capi.llama_vocab_get_attr(vocab, token) & wanted:
                yield token, capi.llama_vocab_get_text(vocab, token)

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

    def _piece(self, token: int, n_max: int = _PIECE_BYTES, *, is_named: bool = False) -> bytes:
        buffer = ctypes.create_string_buffer(n_max)
        n = int(capi.llama_token_to_piece(self.vocab, token, buffer, n_max, 0, is_named))
        return self._piece(token, -n, is_named=is_named) if n < 0 else buffer.raw[:n]

    @functools.cached_property
    def ends(self) -> NDArray[np.intp]:
        """The ids of all tokens that end generation, ascending; asked once, some tens of milliseconds."""
        vocab = self.vocab
        ends = [token for token in range(self.n_vocab) if capi.llama_vocab_is_eog(vocab, token)]
        return np.array(ends, dtype=np.intp)

    @functools.cached_property
    def _end_ids(self) -> frozenset[int]:
        return frozenset(self.ends.tolist())

    @property
    def end_names(self) -> frozenset[str]:
        """The names of the control tokens that end generation."""
        return frozenset(name for name, token in self.controls.items() if token in self._end_ids)

    def special(self, kind: str) -> TokenId | None:
        """The vocabulary's token of a kind, in llama.h's word: bos, eot, fim_pre, …"""
        token = int(getattr(capi, f"llama_vocab_{kind}")(self.vocab))
        return None if token < 0 else TokenId(token)

    @property
    def template_tokens(self) -> dict[str, str]:
        """The names of the tokens that templates know, such as `bos_token`; "" for one that the vocabulary lacks."""
        found = {kind: self.special(kind) for kind in ("bos", "eos", "pad")}
        names = {kind: b"" if token is None else self._piece(token, is_named=True) for kind, token in found.items()}
        return {f"{kind}_token": name.decode(errors="replace") for kind, name in names.items()}

    def text_of(self, token: TokenId) -> bytes:
        """The token's text as the vocabulary spells it; the name of a control token."""
        return capi.llama_vocab_get_text(self.vocab, token) or b""

    @functools.cached_property
    def infill_marks(self) -> InfillMarks | None:
        """The tokens that mark a gap in a text; None if the vocabulary lacks one of the three."""
        kinds = ("fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep")
        prefix, suffix, middle, repository, file = map(self.special, kinds)
        if prefix is None or suffix is None or middle is None:
            return None
        return InfillMarks(prefix, suffix, middle, repository, file)

    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that begin, end and fill up texts; -1 for those that the vocabulary lacks."""
        kinds = {"BOS": "bos", "EOS": "eos", "EOT": "eot", "separator": "sep", "padding": "pad"}
        found = ((name, self.special(kind)) for name, kind in kinds.items())
        return {name: -1 if token is None else token for name, token in found}
