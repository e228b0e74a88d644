"""The calls of parity to a model: logits of every position of a text, greedy continuations, and the KV memory.

Not on the serving path: context.py reads the last row of a slot, this reads all rows, with any cache type and
attention. One thread at a time.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from parity.llama.tensor_capture import KvState, TensorCapture, parse_kv_state
from worker.engine.step import Slice
from worker.errors import ModelLoadFailed
from worker.llama.batch import Batch
from worker.llama.model import Model
from worker.llama.seq_ids import SeqIds
from worker.models.upstream.numbers import CACHE_TYPE_IDS, CELL_STEP, FLASH_ATTENTION, MAX_THREADS
from worker.wire.jobs import SlotId, TokenId

Logits = NDArray[np.float32]

_SEQ_ID = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of attention, and the cut of the text."""

    type_k: str = "f32"
    type_v: str = "f32"
    """The types of the caches; keys of CACHE_TYPE_IDS."""
    flash_attn: str = "off"
    """A key of FLASH_ATTENTION; a quantised `type_v` needs `on`."""
    n_rows: int = 512
    """Tokens per decode."""
    swa_full: bool = True
    """Layers with a sliding window have as many cells as others."""


class Scorer:
    """Closed by its model at the latest; after `close` every method raises ValueError."""

    def __init__(
        self, model: Model, setup: Setup, *, n_ctx: int, n_threads: int, tap: TensorCapture | None = None
    ) -> None:
        """`n_ctx` in tokens. Memory: n_rows rows of float32[n_vocab] plus the KV memory.

        Raises: ValueError for sizes out of range, ModelLoadFailed, InsufficientMemory, with the library's last error.
        Source: llama_init_from_model.
        """
        for what, value, limit in (
            ("tokens of context", n_ctx, 2**31 - CELL_STEP),
            ("rows", setup.n_rows, 2**31 - 1),
            ("threads", n_threads, MAX_THREADS),
        ):
            if not 1 <= value <= limit:
                raise ValueError(f"{what} must be 1 to {limit} (got {value})")
        self._model = model
        self._tap = tap
        self._n_ctx = n_ctx
        self._n_rows = min(setup.n_rows, n_ctx)
        self._handle: int | None = None
        self._open(self._params(setup, n_threads))
        self._batch = Batch(self._n_rows, SeqIds(n_slots=1))

    def _params(self, setup: Setup, n_threads: int) -> object:
        params = capi.llama_context_default_params()
        params.n_ctx = -(-self._n_ctx // CELL_STEP) * CELL_STEP
        params.n_batch = params.n_ubatch = params.n_outputs_max = self._n_rows
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k, params.type_v = CACHE_TYPE_IDS[setup.type_k], CACHE_TYPE_IDS[setup.type_v]
        params.flash_attn_type = FLASH_ATTENTION[setup.flash_attn]
        params.kv_unified, params.swa_full = True, setup.swa_full
        if self._tap is not None:
            params.cb_eval = self._tap.callback
        return params

    def _open(self, params: object) -> None:
        self._handle, watch = self._model.new_context(params, self.close)
        self.is_without_flash = watch.is_without_flash
        if capi.llama_get_memory(self._handle) is None:
            self.close()
            raise ModelLoadFailed("the model keeps no tokens in memory (an embedding model); it cannot be scored")

    # ── what is asked ────────────────────────────────────────────────────────────────────────────

    def logits(self, tokens: Sequence[int]) -> Logits:
        """float32[n, n_vocab], a copy: row i answers to tokens [0, i], computed from an empty memory.

        Raises: ValueError for tokens that are none, too many or outside the vocabulary. RuntimeError: the library
        failed. Source: llama_decode, llama_get_logits.
        """
        self._begin(tokens, len(tokens))
        rows = np.empty((len(tokens), self._model.n_vocab), np.float32)
        for start in range(0, len(tokens), self._n_rows):
            piece = tokens[start : start + self._n_rows]
            rows[start : start + len(piece)] = self._decode(piece, start)
        return rows

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """The `n_tokens` tokens of the highest logits after `prompt`, one per decode; ends are not respected.

        Of equal logits the lowest id is taken. Raises: as `logits`.
        """
        if n_tokens < 1:
            raise ValueError(f"{n_tokens} tokens cannot be generated: at least 1")
        self._begin(prompt, len(prompt) + n_tokens - 1)
        answers = [self._prompted(prompt)]
        for n_done in range(n_tokens - 1):
            answers.append(int(self._decode(answers[-1:], len(prompt) + n_done)[-1].argmax()))
        return answers

    def kv(self) -> KvState:
        """The KV memory after the last `logits` or `greedy`.

        Raises: ValueError for a type or kind of memory that cannot be read. Source: llama_state_seq_get_data.
        """
        n_bytes = int(capi.llama_state_seq_get_size(self.handle, _SEQ_ID))
        state = (ctypes.c_uint8 * n_bytes)()
        n_read = int(capi.llama_state_seq_get_data(self.handle, state, n_bytes, _SEQ_ID))
        if not 0 < n_read == n_bytes:
            raise RuntimeError(f"{n_read} of {n_bytes} bytes of the KV memory could be read")
        return parse_kv_state(bytes(state))

    # ── decoding ─────────────────────────────────────────────────────────────────────────────────

    def _begin(self, tokens: Sequence[int], n_cells: int) -> None:
        """The gate, and an empty memory: wrong arguments would abort the process."""
        if not 1 <= len(tokens) <= n_cells <= self._n_ctx:
            raise ValueError(f"{len(tokens)} tokens that need {n_cells} cells; 1 to {self._n_ctx} are possible")
        if min(tokens) < 0 or max(tokens) >= self._model.n_vocab:
            raise ValueError(f"a token outside the vocabulary of {self._model.n_vocab}")
        # Zeroed too: padding cells must not contain numbers of an earlier text.
        capi.llama_memory_clear(capi.llama_get_memory(self.handle), True)
        if self._tap is not None:
            self._tap.clear()

    def _prompted(self, prompt: Sequence[int]) -> int:
        best = -1
        for start in range(0, len(prompt), self._n_rows):
            best = int(self._decode(prompt[start : start + self._n_rows], start)[-1].argmax())
        return best

    def _decode(self, tokens: Sequence[int], start: int) -> Logits:
        """float32[n, n_vocab], a view, valid until the next decode."""
        self._batch.fill([Slice(SlotId(_SEQ_ID), start, [TokenId(token) for token in tokens], None)])
        ctypes.memset(self._batch.struct.logits, 1, len(tokens))
        code = int(capi.llama_decode(self.handle, self._batch.struct))
        if code != 0:
            raise RuntimeError(f"llama_decode failed with code {code} on {len(tokens)} tokens at position {start}")
        pointer = capi.llama_get_logits(self.handle)
        # NULL is a falsy pointer object here, not None.
        if not pointer:
            raise RuntimeError("llama.cpp has no logits")
        return np.ctypeslib.as_array(pointer, shape=(len(tokens), self._model.n_vocab))

    # ── end ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def handle(self) -> int:
        """The handle, for this package only."""
        if self._handle is None:
            raise ValueError("the scorer is closed")
        return self._handle

    def close(self) -> None:
        """Free the library's context. Idempotent."""
        if self._handle is not None:
            capi.llama_free(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
