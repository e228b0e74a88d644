"""One model's vocabulary: a prompt of any kind becomes tokens, and a token becomes bytes.

Control tokens come from text that was given as raw input, or from a template, never from the words of a conversation.
Safe on any thread, also while another decodes; the intake thread reads prompts.
"""

import ctypes
import functools
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.engine.backend import Read
from worker.formats.render.template import ChatTemplates
from worker.models.facts.spelling import Gaps, Spelling, Unspellable
from worker.wire.jobs import Prompt, TokenId
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation, Infill

_NEVER_MERGED = b"\n"
"""A byte of its own in vocabularies that put a space before a text."""
_BEYOND_UNICODE = re.compile(rb"\xf4[\x90-\xbf][\x80-\xbf]{2}|[\xf5-\xf7][\x80-\xbf]{3}")
"""Bytes that the library's UTF-8 reader takes for a code point and its writer refuses (unicode_cpt_to_utf8)."""
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


TokenKind = Literal["bos", "eos", "pad"]
TOKEN_KINDS: tuple[TokenKind, ...] = get_args(TokenKind)


class InfillMarks(NamedTuple):
    """The tokens around a gap in a text, and those before a repository's name and before each file."""

    prefix: TokenId
    suffix: TokenId
    middle: TokenId
    repository: TokenId | None
    file: TokenId | None


class Tokenizer:
    """A Model is one. After `Model.close` every method raises ValueError."""

    def __init__(self, vocab: Any, gaps: Gaps | None) -> None:
        """`gaps`: what the check of the file found missing; without it llama.cpp meets every text. Any: an opaque
        pointer."""
        self._vocab = vocab
        self.n_vocab = int(capi.llama_vocab_n_tokens(vocab))
        self._spelling = None if gaps is None else Spelling(gaps, self._dividers)
        self._bos = self.special("bos") if capi.llama_vocab_get_add_bos(vocab) else None

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
            # The vocabulary has neither a token for it nor one for unknown text.
            alone = (self._tokenize_all(each.encode(), 1, parse_special=False) for each in text)
            place = next((at for at, found in enumerate(alone) if min(found, default=0) < 0), 0)
            raise Unspellable(text[place], start + place)
        return tokens

    def _said_by(self, tokens: Iterable[TokenId]) -> bytes:
        return b"".join(self._named_piece(token) for token in tokens if token >= 0)

    def _with_bos(self, tokens: list[TokenId]) -> list[TokenId]:
        return tokens if self._bos is None or tokens[:1] == [self._bos] else [self._bos, *tokens]

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
        wanted = capi.LLAMA_TOKEN_ATTR_USER_DEFINED | (_CONTROL if parse_special else 0)
        return [text.decode(errors="surrogateescape") for _, text in self._with_attribute(wanted)]

    @functools.cached_property
    def controls(self) -> dict[str, TokenId]:
        """The control tokens by their names, as the library finds them in a text: the first of a name counts."""
        controls: dict[str, TokenId] = {}
        for token, name in self._with_attribute(_CONTROL):
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

    @property
    def end_names(self) -> frozenset[str]:
        """The names of the control tokens that end generation."""
        return frozenset(name for name, token in self.controls.items() if self.is_end(token))

    def special(self, kind: str) -> TokenId | None:
        """The vocabulary's token of a kind, in llama.h's word: bos, eot, fim_pre, …"""
        token = int(getattr(capi, f"llama_vocab_{kind}")(self.vocab))
        return None if token < 0 else TokenId(token)

    def name_of(self, kind: TokenKind) -> str | None:
        """Return the vocabulary's name of one of its tokens; None if it has none."""
        token = self.special(kind)
        return None if token is None else self._named_piece(token).decode(errors="replace")

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

    def tokenize_bytes(self, data: bytes) -> list[TokenId]:
        """Any bytes, UTF-8 or not: special tokens in them are parsed, BOS is not put before them.

        Raises: ValueError for a form beyond U+10FFFF: the library would throw, and so end the process.
        """
        beyond = _BEYOND_UNICODE.search(data)
        if beyond:
            raise ValueError(f"the bytes {beyond[0].hex(' ')} at {beyond.start()} spell no code point of Unicode")
        return self._tokenize_all(data, len(data))

    def spell(self, text: bytes) -> list[TokenId]:
        """UTF-8 in the middle of a text, as the tokenizer spells it: names of special tokens in it are text, and the
        space that some vocabularies put before a text is left out, also behind a word of the vocabulary's own, such as
        `<tool_call>`. Empty where there is no such spelling.
        """
        found: list[TokenId] = []
        while text:
            tokens, n_bytes = self._first_spelled(text)
            if not n_bytes:
                return []
            found += tokens
            text = text[n_bytes:]
        return found

    def _first_spelled(self, text: bytes) -> tuple[list[TokenId], int]:
        """The most tokens, from the first on, that spell the text's first bytes, and how many bytes these are."""
        longest: tuple[list[TokenId], int] = [], 0
        for before in (b"", _NEVER_MERGED):
            try:
                tokens = self._tokenize_all(before + text, len(text), parse_special=False)
            except Unspellable:
                continue
            # -1: the vocabulary has no token there.
            pieces = [self.piece(token) if token >= 0 else b"" for token in tokens]
            n_left = len(before) + len(text)
            first = 0
            while first < len(pieces) and n_left > len(text):
                n_left -= len(pieces[first].lstrip(b" "))
                first += 1
            n_bytes, last = 0, first
            while last < len(pieces) and pieces[last] and text.startswith(pieces[last], n_bytes):
                n_bytes += len(pieces[last])
                last += 1
            if n_bytes > longest[1]:
                longest = tokens[first:last], n_bytes
            if n_bytes == len(text):
                break
        return longest

    def token_of(self, text: str) -> TokenId | None:
        """The one token a text is, special tokens included; None where it is none or several."""
        try:
            tokens = self._tokenize_all(text.encode(), len(text))
        except Unspellable:
            return None
        return tokens[0] if len(tokens) == 1 else None


_REPOSITORY, _THIS_FILE = "myproject\n", "filename\n"
"""The names that llama-server gives to a repository and to the file with the gap. No request names them."""
_NO_SEPARATOR = "\n\n--- snippet ---\n\n"
"""The text between files if the vocabulary has no token for it, the same as in llama-server."""


class Prompts:
    """The reader of prompts, for `LoadedModel.prompts`."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplates | Violation) -> None:
        """`chat`: the templates, or why no conversation can be read."""
        self._tokenizer = tokenizer
        self._chat = chat

    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        try:
            return self._read(prompt, add_special=add_special, parse_special=parse_special)
        except Unspellable as error:
            is_rendered = isinstance(prompt, Conversation)
            message = f"{error} of the rendered conversation" if is_rendered else str(error)
            return Violation("messages" if is_rendered else "prompt", "vocabulary", message)

    def _read(self, prompt: Prompt, *, add_special: bool, parse_special: bool) -> Read | Violation:
        if isinstance(prompt, Conversation):
            return self._read_conversation(prompt)
        if isinstance(prompt, Infill):
            return self._read_infill(prompt)
        if isinstance(prompt, str):
            return Read(self._tokenizer.tokenize(prompt, add_special=add_special, parse_special=parse_special), prompt)
        return self._outside(prompt) or Read(list(prompt), None)

    def _read_conversation(self, conversation: Conversation) -> Read | Violation:
        rendered = self._chat if isinstance(self._chat, Violation) else self._chat.read(conversation)
        if isinstance(rendered, Violation):
            return rendered
        if rendered.controls is None:
            return Read(self._tokenizer.tokenize(rendered.text), rendered.text)
        return Read(self._tokenizer.tokenize_around(rendered.text, rendered.controls), rendered.text)

    def _read_infill(self, gap: Infill) -> Read | Violation:
        """The tokens in llama-server's order: other files, then the text before the gap, after it, and the gap."""
        marks = self._tokenizer.infill_marks
        if marks is None:
            return Violation("prompt", "supported", "the model has no fill-in-the-middle tokens")
        text = functools.partial(self._tokenizer.tokenize, add_special=False, parse_special=False)
        before: list[TokenId] = []
        if gap.files is not None and marks.repository is not None:
            before += [marks.repository, *text(_REPOSITORY)]
        for name, content in gap.files or ():
            before += text(_NO_SEPARATOR) if marks.file is None else [marks.file, *text(f"{name}\n")]
            before += text(content)
        if gap.files is not None and marks.file is not None:
            before += [marks.file, *text(_THIS_FILE)]
        # BOS belongs to the text, as in llama-server, where other files stand before it.
        bos = self._tokenizer.tokenize("", parse_special=False)
        around = [marks.prefix, *text(gap.prefix), *text(gap.begun), marks.suffix, *text(gap.suffix), marks.middle]
        return Read([*before, *bos, *around], None)

    def detokenize(self, tokens: Sequence[TokenId]) -> str | Violation:
        return self._outside(tokens) or self._tokenizer.detokenize(tokens).decode(errors="replace")

    def _outside(self, tokens: Sequence[TokenId]) -> Violation | None:
        """Return what is wrong with ids that are not in the vocabulary."""
        n_vocab = self._tokenizer.n_vocab
        place = next((place for place, token in enumerate(tokens) if not 0 <= token < n_vocab), None)
        if place is None:
            return None
        message = f"the id at position {place} is outside the vocabulary, whose ids are 0 to {n_vocab - 1}"
        return Violation("tokens", f"vocabulary({n_vocab})", message)
