"""One model's vocabulary: a prompt of any kind becomes tokens, and a token becomes bytes.

Control tokens come from text that was given as raw input, or from a template, never from the words of a conversation.
Safe on any thread, also while another decodes; the intake thread reads prompts.
"""

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from llama_cpp import llama_cpp as capi

from worker.engine.backend import Read
from worker.formats.render.template import ChatTemplates
from worker.llama.token_table import CONTROL, TokenTable
from worker.models.facts.spelling import Gaps, Spelling, Unspellable
from worker.wire.jobs import Prompt, TokenId
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation, Infill

_C_SPACES = " \t\n\v\f\r"
"""C's isspace, for tokens that take the space beside them."""

SHALLOW_CHARS = 1024
STACK_BYTES_PER_CHAR = 1024
_DEFAULT_STACK_BYTES = 8 * 2**20
"""Vocabularies without a splitter of their own are split by std::regex, whose matcher calls itself for every character
of a run: 32,768 digits end the process on a stack of 8 MiB (Falcon's, DeepSeek's, Tekken's, GPT-4o's expressions), and
pass on 12 MiB. Source: unicode_regex_split_stl (unicode.cpp)."""


class Tokenizer(TokenTable):
    """A Model is one. After `Model.close` every method raises ValueError."""

    def __init__(self, vocab: Any, gaps: Gaps | None) -> None:
        """`gaps`: what the check of the file found missing; without it llama.cpp meets every text. Any: an opaque
        pointer."""
        super().__init__(vocab)
        self._spelling = None if gaps is None else Spelling(gaps, self._dividers)
        self._bos = self.special("bos") if capi.llama_vocab_get_add_bos(vocab) else None

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

    def piece(self, token: TokenId) -> bytes:
        """The token's raw bytes, which need not be whole characters; a control, unknown or unused token has none.

        Raises: ValueError for an id outside the vocabulary (the library would abort).
        """
        self._check(token)
        return self.pieces[token]

    def is_end(self, token: TokenId) -> bool:
        """Return whether the vocabulary's token ends generation, as EOS and EOT do. Raises: as `piece`."""
        self._check(token)
        return token in self._end_ids

    def _named_piece(self, token: int) -> bytes:
        """Return the `piece` of a token, but a control token's name."""
        self._check(token)
        return self._piece(token, is_named=True)

    def _check(self, token: int) -> None:
        assert self.vocab
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token {token} is outside the vocabulary of {self.n_vocab}")

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
        wanted = capi.LLAMA_TOKEN_ATTR_USER_DEFINED | (CONTROL if parse_special else 0)
        return [text.decode(errors="surrogateescape") for _, text in self._with_attribute(wanted)]

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
        marks = self._tokenizer.infill_marks
        if marks is None:
            return Violation("prompt", "supported", "the model has no fill-in-the-middle tokens")
        text = functools.partial(self._tokenizer.tokenize, add_special=False, parse_special=False)
        # BOS belongs to the text, as in llama-server, where other files stand before it.
        return Read(marks.around(gap, text, self._tokenizer.tokenize("", parse_special=False)), None)

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
