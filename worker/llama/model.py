"""One model in memory: its weights, its vocabulary, its metadata.

Owns the llama_model handle and closes the contexts made from it. Knows nothing of decoding.
What it says of the vocabulary (`tokenize`, `piece`, `ends`, …) is safe on any thread, also while another decodes; load
and close are not.
"""

import ctypes
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.errors import ModelLoadFailed
from worker.llama.buffers import Watch
from worker.llama.devices import device_handle
from worker.llama.library import load_failure, open_library
from worker.model.spelling import Gaps, Spelling, Unspellable
from worker.plan.buffers import BufferSizes
from worker.plan.devices import Device
from worker.upstream.numbers import LOAD_AUTO, LOAD_NONE, SPLIT_MODES
from worker.wire.jobs import TokenId
from worker.wire.load import SplitMode

_PIECE_BYTES = 64
"""Most pieces are shorter; a longer one costs a second call."""
_NEVER_MERGED = b"\n"
"""A byte of its own in vocabularies that put a space before a text."""
_CONTROL = capi.LLAMA_TOKEN_ATTR_CONTROL | capi.LLAMA_TOKEN_ATTR_UNKNOWN
"""The tokens that parse_special=False leaves alone. Source: tokenizer_st_partition (llama-vocab.cpp)."""
_C_SPACES = " \t\n\v\f\r"
"""C's isspace, for tokens that take the space beside them."""
_BEYOND_UNICODE = re.compile(rb"\xf4[\x90-\xbf][\x80-\xbf]{2}|[\xf5-\xf7][\x80-\xbf]{3}")
"""Bytes that the library's UTF-8 reader takes for a code point and its writer refuses (unicode_cpt_to_utf8)."""

SHALLOW_CHARS = 1024
STACK_BYTES_PER_CHAR = 1024
_DEFAULT_STACK_BYTES = 8 * 2**20
"""Vocabularies without a splitter of their own are split by std::regex, whose matcher calls itself for every character
of a run: 32,768 digits end the process on a stack of 8 MiB (Falcon's, DeepSeek's, Tekken's, GPT-4o's expressions), and
pass on 12 MiB. Source: unicode_regex_split_stl (unicode.cpp)."""

TokenKind = Literal["bos", "eos", "pad"]
TOKEN_KINDS: tuple[TokenKind, ...] = get_args(TokenKind)


@dataclass(frozen=True, slots=True)
class Split:
    """Several GPUs of one backend that have a model together."""

    mode: SplitMode
    devices: tuple[Device, ...]
    shares: tuple[float, ...]
    """The part of each device, in any unit."""


@dataclass(frozen=True, slots=True)
class InfillMarks:
    """The tokens around a gap in a text, and those before a repository's name and before each file."""

    prefix: TokenId
    suffix: TokenId
    middle: TokenId
    repository: TokenId | None
    file: TokenId | None


class Model:
    """Made by `Model.load`. After `close` every method raises ValueError."""

    def __init__(self, handle: int, devices: tuple[Device, ...], watch: Watch, gaps: Gaps | None = None) -> None:
        self._handle: int | None = handle
        self._closing = ExitStack()
        self._closing.callback(self._free)
        self._vocab = capi.llama_model_get_vocab(handle)
        self.devices = devices
        self.sizes: BufferSizes = watch.sizes
        self.n_offloaded = watch.n_offloaded
        self.n_layers = watch.n_layers
        """The number of layers of the model, as Watch has it: 0 if the build has no GPU backend."""
        self.n_vocab = int(capi.llama_vocab_n_tokens(self._vocab))
        self._bos = int(capi.llama_vocab_bos(self._vocab))
        self._spelling = None if gaps is None else Spelling(gaps, self._dividers)
        self._has_bos = bool(capi.llama_vocab_get_add_bos(self._vocab)) and self._bos >= 0

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: Device,
        n_gpu_layers: int,
        on_progress: Callable[[int], None],
        split: Split | None = None,
        is_mapped: bool = True,
        may_repack: bool = True,
        gaps: Gaps | None = None,
    ) -> Self:
        """Take the weights from the file and put `n_gpu_layers` of them (output layer included; negative: all) on
        `device`, or on all the GPUs of a `split`, whose first is `device`.

        `is_mapped`: leave in the file what is computed with as it lies there, where the device can; else all is read.
        `may_repack`: whether the CPU lays weights out anew, in tiles too; all that it can, so that repack.py decides.
        `gaps`: what the check of the file found missing in the vocabulary; without it llama.cpp meets every text.
        `on_progress` gets whole percents, rising, each at most once, ending in 100; it must not raise.
        Raises: ModelLoadFailed, InsufficientMemory, with the library's last error. Source: llama_model_load_from_file.
        """
        library = open_library()
        params = capi.llama_model_default_params()
        gpus = [] if device.kind == "cpu" else [device_handle(gpu) for gpu in (split.devices if split else (device,))]
        # NULL-terminated; an empty list keeps every GPU out of it. Both must outlive the call.
        device_list = (ctypes.c_void_p * (len(gpus) + 1))(*gpus, None)
        progress = capi.llama_progress_callback(_percents(on_progress))
        params.devices = ctypes.cast(device_list, ctypes.c_void_p)
        params.split_mode = SPLIT_MODES[split.mode if split else "none"]
        # One for each device the library was built for, the others 0; it copies them.
        shares = (ctypes.c_float * capi.llama_max_devices())(*(split.shares if split else ()))
        params.tensor_split = shares
        params.n_gpu_layers = n_gpu_layers if gpus else 0
        params.progress_callback = progress
        params.use_extra_bufts = may_repack
        params.load_mode = LOAD_AUTO if is_mapped else LOAD_NONE
        with library.watch() as watch:
            handle = capi.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise load_failure(f"{path}: cannot be loaded", watch, device.free_bytes)
        model = cls(handle, split.devices if split else (device,), watch, gaps)
        if not model.has_text:
            model.close()
            raise ModelLoadFailed(f"{path}: only models that read and write text without an encoder can be served")
        return model

    # ── facts ────────────────────────────────────────────────────────────────────────────────────

    @property
    def handle(self) -> int:
        """The library's handle, for this room only."""
        if self._handle is None:
            raise ValueError("the model is closed")
        return self._handle

    @property
    def device(self) -> Device:
        """The first of `devices`, all of which are of one backend."""
        return self.devices[0]

    @property
    def device_names(self) -> list[str]:
        return [device.name for device in self.devices]

    @property
    def is_open(self) -> bool:
        return self._handle is not None

    @property
    def vocab(self) -> Any:
        """The vocabulary, for this room only; it lives and dies with the model. Any: an opaque pointer."""
        if self._handle is None:
            raise ValueError("the model is closed")
        return self._vocab

    @property
    def has_text(self) -> bool:
        """A decoder with a vocabulary and no encoder; to tokenise without a vocabulary would abort."""
        has_vocab = capi.llama_vocab_type(self._vocab) != capi.LLAMA_VOCAB_TYPE_NONE
        has_decoder = capi.llama_model_has_decoder(self.handle)
        return bool(has_vocab and has_decoder and not capi.llama_model_has_encoder(self.handle))

    @property
    def can_rewind(self) -> bool:
        """True if the end of a sequence can be forgotten alone; recurrent state cannot be unwound."""
        return not (capi.llama_model_is_recurrent(self.handle) or capi.llama_model_is_hybrid(self.handle))

    @property
    def n_swa(self) -> int:
        """Tokens that layers with a sliding window look back on; 0 where no layer has one."""
        return int(capi.llama_model_n_swa(self.handle))

    # ── text ─────────────────────────────────────────────────────────────────────────────────────

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

    def name_of(self, kind: TokenKind) -> str | None:
        """Return the vocabulary's name of one of its tokens; None if it has none."""
        find = {"bos": capi.llama_vocab_bos, "eos": capi.llama_vocab_eos, "pad": capi.llama_vocab_pad}
        token = int(find[kind](self.vocab))
        return None if token < 0 else self._named_piece(token).decode(errors="replace")

    def text_of(self, token: TokenId) -> bytes:
        """The token's text as the vocabulary spells it; the name of a control token."""
        return capi.llama_vocab_get_text(self.vocab, token) or b""

    def token_texts(self) -> list[bytes]:
        """Every token's text as the vocabulary spells it, names of control tokens included; some tens of
        milliseconds."""
        vocab = self.vocab
        return [capi.llama_vocab_get_text(vocab, token) for token in range(self.n_vocab)]

    @functools.cached_property
    def infill_marks(self) -> InfillMarks | None:
        """The tokens that mark a gap in a text; None if the vocabulary lacks one of the three."""
        vocab = self.vocab
        prefix, suffix, middle, repository, file = (
            None if (token := int(find(vocab))) < 0 else TokenId(token)
            for find in (
                capi.llama_vocab_fim_pre,
                capi.llama_vocab_fim_suf,
                capi.llama_vocab_fim_mid,
                capi.llama_vocab_fim_rep,
                capi.llama_vocab_fim_sep,
            )
        )
        if prefix is None or suffix is None or middle is None:
            return None
        return InfillMarks(prefix, suffix, middle, repository, file)

    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that begin, end and fill up texts; -1 for those that the vocabulary lacks."""
        find = {
            "BOS": capi.llama_vocab_bos,
            "EOS": capi.llama_vocab_eos,
            "EOT": capi.llama_vocab_eot,
            "separator": capi.llama_vocab_sep,
            "padding": capi.llama_vocab_pad,
        }
        return {kind: int(of(self.vocab)) for kind, of in find.items()}

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
        space that some vocabularies put before a text is left out. Empty where there is no such spelling.
        """
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
            if b"".join(pieces[first:]) == text:
                return tokens[first:]
        return []

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

    def token_of(self, text: str) -> TokenId | None:
        """The one token a text is, special tokens included; None where it is none or several."""
        try:
            tokens = self._tokenize_all(text.encode(), len(text))
        except Unspellable:
            return None
        return tokens[0] if len(tokens) == 1 else None

    def _check(self, token: int) -> None:
        assert self.vocab
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token {token} is outside the vocabulary of {self.n_vocab}")

    # ── end ──────────────────────────────────────────────────────────────────────────────────────

    def new_context(self, params: object, close: Callable[[], None]) -> tuple[int, Watch]:
        """A llama_context's handle, and what the library said while it was made; `close` is called before the model is
        freed. For this room only.

        Raises: ModelLoadFailed, InsufficientMemory, with the library's last error. Source: llama_init_from_model.
        """
        with open_library().watch() as watch:
            handle = capi.llama_init_from_model(self.handle, params)
        if not handle:
            raise load_failure("the context cannot be made", watch, self.device.free_bytes)
        self.close_before(close)
        return handle, watch

    def close_before(self, close: Callable[[], None]) -> None:
        """Have `close` called before the model is freed: what was made from it goes first, newest first."""
        self._closing.callback(close)

    def close(self) -> None:
        """Free the contexts made from the model, then the model. Idempotent."""
        self._closing.close()

    def _free(self) -> None:
        capi.llama_model_free(self.handle)
        self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _percents(on_progress: Callable[[int], None]) -> Callable[[float, object], bool]:
    reported = -1

    def report(progress: float, _: object) -> bool:
        nonlocal reported
        percent = int(progress * 100)
        if percent > reported:
            reported = percent
            on_progress(percent)
        # False would cancel the load.
        return True

    return report
