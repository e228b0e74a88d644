"""One model in memory: its weights, its vocabulary (tokenizer.py), its metadata.

What it says of the vocabulary is safe on any thread, also while another decodes; load and close are not.
"""

import ctypes
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llama_cpp import llama_cpp as capi

from worker.config.engine_settings import SplitMode
from worker.constraints.jobs import Constraints
from worker.constraints.vocabulary import Vocabulary
from worker.engine.channels import NO_CONTROL_TOKENS, ControlTokens
from worker.errors import ModelLoadFailed
from worker.llama.devices import device_handle
from worker.llama.library import Watch, give_back_memory, load_failure, open_library
from worker.llama.tokenizer import Tokenizer
from worker.models.facts.spelling import Gaps, Unspellable
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.devices import Device
from worker.models.plan.placement import Group
from worker.models.upstream.numbers import LOAD_AUTO, LOAD_NONE, SPLIT_MODES
from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.jobs import TokenId

_BEYOND_UNICODE = re.compile(rb"\xf4[\x90-\xbf][\x80-\xbf]{2}|[\xf5-\xf7][\x80-\xbf]{3}")
"""Bytes that the library's UTF-8 reader takes for a code point and its writer refuses (unicode_cpt_to_utf8)."""
_NEVER_MERGED = b"\n"
"""A byte of its own in vocabularies that put a space before a text."""


class Model(Tokenizer):
    """Made by `Model.load`. After `close` every method raises ValueError."""

    def __init__(self, handle: int, devices: tuple[Device, ...], watch: Watch, gaps: Gaps | None = None) -> None:
        self._handle: int | None = handle
        self._closing = ExitStack()
        self._closing.callback(self._free)
        super().__init__(capi.llama_model_get_vocab(handle), gaps)
        self.devices = devices
        self.sizes: BufferSizes = watch.sizes
        self.n_offloaded = watch.n_offloaded
        self.n_layers = watch.n_layers
        """The number of layers of the model, as Watch has it: 0 if the build has no GPU backend."""

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: Device,
        n_gpu_layers: int,
        on_progress: Callable[[int], None],
        split: Group | None = None,
        split_mode: SplitMode = "none",
        is_mapped: bool = True,
        may_repack: bool = True,
        loads_heads: bool = False,
        is_dry: bool = False,
        gaps: Gaps | None = None,
    ) -> Self:
        """Take the weights from the file and put `n_gpu_layers` of them (output layer included; negative: all) on
        `device`, or on all the GPUs of a `split`, whose first is `device`.

        `is_mapped`: leave in the file what is computed with as it lies there, where the device can; else all is read.
        `may_repack`: whether the CPU lays weights out anew, in tiles too; all that it can, so that repack.py decides.
        `loads_heads`: the layers that predict the tokens after the next, too (heads.py).
        `is_dry`: allocate nothing and read no weight; its contexts allocate recurrent states alone (devices.py).
        `gaps`: what the check of the file found missing in the vocabulary; without it llama.cpp meets every text.
        `on_progress` gets whole percents, rising, each at most once, ending in 100; it must not raise.
        Raises: ModelLoadFailed, InsufficientMemory, with the library's last error. Source: llama_model_load_from_file.
        """
        params = capi.llama_model_default_params()
        gpus = [] if device.kind == "cpu" else [device_handle(gpu) for gpu in (split.devices if split else (device,))]
        # NULL-terminated; an empty list keeps every GPU out of it. Both must outlive the call.
        device_list = (ctypes.c_void_p * (len(gpus) + 1))(*gpus, None)
        progress = capi.llama_progress_callback(_percents(on_progress))
        params.devices = ctypes.cast(device_list, ctypes.c_void_p)
        params.split_mode = SPLIT_MODES[split_mode if split else "none"]
        # One for each device the library was built for, the others 0; it copies them.
        shares = (ctypes.c_float * capi.llama_max_devices())(*(split.shares if split else ()))
        params.tensor_split = shares
        params.n_gpu_layers = n_gpu_layers if gpus else 0
        params.progress_callback = progress
        params.use_extra_bufts, params.load_mtp = may_repack, loads_heads
        params.load_mode = LOAD_AUTO if is_mapped and not is_dry else LOAD_NONE
        params.no_alloc = is_dry
        model = cls._of_file(path, params, split.devices if split else (device,), gaps)
        has_decoder = capi.llama_model_has_decoder(model.handle) and not capi.llama_model_has_encoder(model.handle)
        if not has_decoder or model.is_without_vocabulary:
            model.close()
            raise ModelLoadFailed(f"{path}: only models that read and write text without an encoder can be served")
        return model

    @classmethod
    def load_vocabulary(cls, path: Path, gaps: Gaps | None = None) -> Self:
        """Read the vocabulary of the file, and no weights. `gaps`: see `load`.

        Raises: ModelLoadFailed, InsufficientMemory.
        """
        params = capi.llama_model_default_params()
        params.vocab_only = True
        model = cls._of_file(path, params, (), gaps)
        if model.is_without_vocabulary:
            model.close()
            raise ModelLoadFailed(f"{path}: it has no vocabulary")
        return model

    @classmethod
    def _of_file(cls, path: Path, params: Any, devices: tuple[Device, ...], gaps: Gaps | None) -> Self:
        """Any: a struct of the library's."""
        with open_library().watch() as watch:
            handle = capi.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            what = "cannot be loaded" if devices else "its vocabulary cannot be loaded"
            raise load_failure(f"{path}: {what}", watch, devices[0].free_bytes if devices else 0)
        return cls(handle, devices, watch, gaps)

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
    def is_without_vocabulary(self) -> bool:
        """True if the file has no vocabulary; the library would abort if it had to tokenise."""
        return bool(capi.llama_vocab_type(self.vocab) == capi.LLAMA_VOCAB_TYPE_NONE)

    @property
    def can_rewind(self) -> bool:
        """True if the end of a sequence can be forgotten alone; recurrent state cannot be unwound."""
        return not (self.is_recurrent or self.is_hybrid)

    @property
    def architecture(self) -> str:
        value = ctypes.create_string_buffer(64)
        capi.llama_model_meta_val_str(self.handle, b"general.architecture", value, len(value))
        return value.value.decode()

    @property
    def is_recurrent(self) -> bool:
        """True if no layer has attention: a sequence has a state and no cells."""
        return bool(capi.llama_model_is_recurrent(self.handle))

    @property
    def is_hybrid(self) -> bool:
        """True if a sequence has a recurrent state beside its cells."""
        return bool(capi.llama_model_is_hybrid(self.handle))

    @property
    def n_swa(self) -> int:
        """Tokens that layers with a sliding window look back on; 0 where no layer has one."""
        return int(capi.llama_model_n_swa(self.handle))

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
        self._handle = self._vocab = None

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


def constraints_of(model: Model, marks: ControlTokens = NO_CONTROL_TOKENS, form: ChatFormat = HERMES) -> Constraints:
    """Return the compiler of jobs' constraints; made once for a model, in some tenths of a second."""
    vocabulary = Vocabulary(
        pieces=model.pieces,
        ends=model.ends,
        piece=model.piece,
        name=model.text_of,
        token_of=model.token_of,
        spell=model.spell,
    )
    return Constraints(vocabulary, give_back=give_back_memory, marks=marks, form=form)
