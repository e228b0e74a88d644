"""One llama_context: the decode call and the logits it leaves; `kv` is its memory.

One thread at a time, recorded by the first decode; `request_abort` from any.
"""

import ctypes
import threading
import time
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.engine.backend import Meanwhile, do_nothing
from worker.engine.step import Aborted, BadBatch, NoRoom, Slice
from worker.errors import ModelLoadFailed
from worker.limits import MAX_DRAFTS
from worker.llama.batch import Batch, RowGroups
from worker.llama.kv import Kv
from worker.llama.library import library_function
from worker.llama.model import Model
from worker.llama.seq_ids import SeqIds, seq_ids_of
from worker.llama.state_kv import StateKv
from worker.llama.threads import Threads
from worker.models.upstream.numbers import CACHE_TYPE_IDS, CELL_STEP, FLASH_ATTENTION, MAX_THREADS
from worker.wire.jobs import SlotId, TokenId

Logits = NDArray[np.float32]
_NO_ROWS: Logits = np.empty((0, 0), np.float32)

_get_logits = library_function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)
"""The binding's function, but it returns an address: a pointer object made of it costs several µs of each step."""


class Context:
    """KV memory of `n_ctx` cells shared by `n_seq_max` slots. Closed by its model at the latest."""

    _handle: int | None = None
    _owner: int | None = None
    _is_of_head = False
    """A next-token head has attention alone, whatever its model has; nothing is shared, and no draft depends on the
    order of cells."""

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_batch: int,
        n_ubatch: int,
        n_seq_max: int,
        n_threads: int,
        n_threads_batch: int,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "auto",
        swa_full: bool = True,
        threads: Threads | None = None,
        has_padding: bool = False,
        n_rows: int = 0,
        n_snapshots: int = 0,
    ) -> None:
        """`n_ctx` in cells, padded to CELL_STEP; `n_batch` is raised to `n_seq_max` where it is less. `has_padding`:
        rows of `row_groups` that are not read get a seq_id if one is left; their cells are the caller's to add.
        `n_rows`: the rows of logits that a batch may have, where these are more than the slots and drafts have.
        `n_snapshots`: the earlier recurrent states of a sequence, where the library keeps them (state_kv.py).

        `swa_full`: layers with a sliding window have as many cells as others, so that their memory can be cut.
        Raises: ModelLoadFailed, InsufficientMemory, with the library's last error. Source: llama_init_from_model.
        """
        params = capi.llama_context_default_params()
        # Padded here already: the library would cut n_batch to n_ctx before it pads.
        params.n_ctx = -(-n_ctx // CELL_STEP) * CELL_STEP
        # A slot draws once a step, and once for each draft: llama.cpp reserves n_batch rows of logits (98 MiB where 14
        # do, for a vocabulary of 49k) when n_outputs_max is not said. It aborts when either is less than its seq_ids.
        seq_ids = SeqIds(n_seq_max)
        if not self._is_of_head:
            seq_ids = seq_ids_of(model, n_seq_max, swa_full=swa_full, has_padding=has_padding)
        self.n_outputs = n_outputs = max(n_seq_max + MAX_DRAFTS, n_rows)
        params.n_outputs_max = max(n_outputs, seq_ids.n_all)
        params.n_batch = max(n_batch, params.n_outputs_max)
        params.n_ubatch, params.n_seq_max = n_ubatch, seq_ids.n_all
        params.n_threads, params.n_threads_batch = min(n_threads, MAX_THREADS), min(n_threads_batch, MAX_THREADS)
        params.type_k, params.type_v = CACHE_TYPE_IDS[type_k], CACHE_TYPE_IDS[type_v]
        params.flash_attn_type = FLASH_ATTENTION[flash_attn]
        params.kv_unified, params.swa_full, params.n_rs_seq = True, swa_full, n_snapshots
        self._model = model
        self._threads, self._n_threads, self._n_threads_batch = threads, n_threads, n_threads_batch
        if self._is_of_head:
            params.ctx_type = capi.LLAMA_CONTEXT_TYPE_MTP
        handle = self._open(params)
        self.n_slots, self.n_seq_ids, self.decoding_s = n_seq_max, seq_ids.n_all, 0.0
        kv = Kv if model.can_rewind or self._is_of_head else StateKv
        self.kv = kv(handle, n_ctx=self.n_ctx, n_slots=n_seq_max, seq_ids=seq_ids, check=self._check_caller)
        self._batch = Batch(self.n_batch, self.kv.seq_ids)
        self.row_groups = RowGroups()
        self._n_rows, self._rows, self._logits_address = 0, _NO_ROWS, 0

    @property
    def can_abort(self) -> bool:
        """True if `request_abort` has an effect: where the backend asks, and the model can be rewound afterwards."""
        return self._model.device.backend in ("cpu", "metal") and self._model.can_rewind

    @property
    def can_pad(self) -> bool:
        """True if `row_groups` may fill steps up."""
        return self.kv.seq_ids.n_slots > self.n_slots

    def _open(self, params: Any) -> int:
        handle, watch = self._model.new_context(params, self.close)
        self._handle = handle
        if capi.llama_get_memory(handle) is None or not capi.llama_get_causal_attn(handle):
            self.close()
            raise ModelLoadFailed("the model does not generate text from left to right (embedding or diffusion)")
        self.sizes, self.is_without_flash = watch.sizes, watch.is_without_flash
        self.is_asynchronous = self._model.device.is_gpu
        """True if `llama_decode` returns before the device has computed the batch."""
        self.n_ctx = int(capi.llama_n_ctx(handle))
        self.n_batch = int(capi.llama_n_batch(handle))
        self.n_ubatch = int(capi.llama_n_ubatch(handle))
        # The library looks at it before each graph node, without the interpreter lock: strlen of "" is 0, go on; of
        # "\x01" it is 1, stop. A Python callback would be called some 500 times a token.
        self._abort_flag = ctypes.create_string_buffer(2)
        self._abort_callback = ctypes.cast(ctypes.CDLL(None).strlen, capi.ggml_abort_callback)
        if self.can_abort:
            capi.llama_set_abort_callback(handle, self._abort_callback, ctypes.cast(self._abort_flag, ctypes.c_void_p))
        return handle

    @property
    def n_threads(self) -> int:
        """The number of threads that compute a decode step now."""
        return self._n_threads if self._threads is None else self._threads.n_now

    def decode(self, slices: Seq[Slice], meanwhile: Meanwhile = do_nothing) -> list[int]:
        """Compute one batch; the batch indexes that have a row of logits, in order: `n_rows` of each slice.
        `meanwhile` is called while the device computes, if it `is_asynchronous` and has taken the batch.

        Raises: BadBatch, NoRoom: nothing was kept. Aborted: the slots keep a part (`kv.n_cells` says how much).
        RuntimeError: the library is in an unknown state. Source: llama_decode.
        """
        self._check_thread()
        handle = self.handle
        n_padding = self.row_groups.n_padding(slices, self.kv.n_free_cells)
        n_tokens = self._check(slices)
        self.kv.make_room(n_tokens + n_padding)
        self._n_rows = 0
        indexes = self._fill(slices)
        began_s = time.perf_counter()
        code = self._decode_padded(n_padding) if n_padding else self._decode()
        if self.is_asynchronous:
            if code == 0:
                meanwhile()
            # Else the time would be that of handing the step over, and the next step that waits would be charged.
            capi.llama_synchronize(handle)
        elapsed_s = time.perf_counter() - began_s
        self.decoding_s += elapsed_s
        if self._threads is not None and self._threads.computed(n_tokens, elapsed_s):
            n_batch_threads = max(1, self._n_threads_batch * self.n_threads // self._n_threads)
            capi.llama_set_n_threads(handle, self.n_threads, n_batch_threads)
        if code != 0:
            self._raise_for(code, slices)
        for slice_ in slices:
            self.kv.add(slice_.slot, len(slice_.tokens))
        self._n_rows = len(indexes)
        return indexes

    def _check(self, slices: Seq[Slice]) -> int:
        """Return how many tokens the slices have. Raises: BadBatch, because many wrong arguments would abort the
        process."""
        n_tokens = sum([len(slice_.tokens) for slice_ in slices])
        if not 1 <= n_tokens <= self.n_batch:
            raise BadBatch(f"a batch of {n_tokens} tokens; 1 to {self.n_batch} are possible")
        n_outputs = sum([slice_.n_rows for slice_ in slices])
        if n_outputs > self.n_outputs:
            raise BadBatch(f"logits of {n_outputs} tokens; a batch has at most {self.n_outputs}")
        if len({slice_.slot for slice_ in slices}) < len(slices):
            raise BadBatch(f"a slot appears twice in one batch: {[slice_.slot for slice_ in slices]}")
        for slice_ in slices:
            if not 0 <= slice_.slot < self.n_slots:
                raise BadBatch(f"slot {slice_.slot}; there are {self.n_slots}")
            if wrong := self._wrong(slice_):
                raise BadBatch(f"slot {slice_.slot}: {wrong}")
        return n_tokens

    def _wrong(self, slice_: Slice) -> str | None:
        tokens, n_drafts = slice_.tokens, slice_.n_drafts
        targets: Seq[TokenId] = () if slice_.scoring is None else slice_.scoring.targets
        if not tokens:
            return "a slice without tokens"
        if any(each and (min(each) < 0 or max(each) >= self._model.n_vocab) for each in (tokens, targets)):
            return f"a token outside the vocabulary of {self._model.n_vocab}"
        if slice_.start != (n_cells := self.kv.n_cells(slice_.slot)):
            return f"position {slice_.start} does not follow its {n_cells} cells"
        if n_drafts and (slice_.sampling is None or not 0 < n_drafts < len(tokens)):
            return f"{n_drafts} drafts among {len(tokens)} tokens cannot be drawn"
        if slice_.scoring is not None and (n_drafts or len(tokens) - len(targets) not in (0, 1)):
            return f"{len(targets)} tokens cannot be scored behind {len(tokens)}"
        return None

    def _fill(self, slices: Seq[Slice]) -> list[int]:
        """Write checked slices; the batch indexes at which logits are asked for."""
        return self._batch.fill(slices)

    def _decode(self) -> int:
        return int(capi.llama_decode(self._handle, self._batch.struct))

    def _decode_padded(self, n_padding: int) -> int:
        """Decode with rows behind the slices'. Their cells are free again at once; as they are the last, no hole is
        left.
        """
        # No slice may have it: a slot for such rows alone or, without one, the seq_id for copies, which is empty now.
        behind_all = SlotId(self.n_slots)
        self._batch.pad(n_padding, behind_all)
        code = self._decode()
        self.kv.remove(behind_all)
        return code

    def rows(self) -> Logits:
        """float32[n_rows, n_vocab]: what the last decode gave for the indexes that it returned, in their order. A view
        into the library's memory, valid until the next decode, and read-only.

        It is not marked as read-only, because numpy's argmax copies what it may not write. It is made anew only where
        the library has moved its memory: to make it takes as long as to draw.
        """
        if not self._n_rows:
            return _NO_ROWS
        address = _get_logits(self.handle)
        if address is None:
            raise RuntimeError("llama.cpp has no logits of its last decode")
        if address != self._logits_address or self._n_rows > len(self._rows):
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            self._rows = np.ctypeslib.as_array(pointer, shape=(self._n_rows, self._model.n_vocab))
            self._logits_address = address
        return self._rows[: self._n_rows]

    def _raise_for(self, code: int, slices: Seq[Slice]) -> None:
        match code:
            case 1:
                raise NoRoom(f"{self.kv.n_cells_used} of {self.n_ctx} cells are used; no room for the batch")
            case 2:
                for slice_ in slices:
                    self.kv.recount(slice_.slot)
                raise Aborted("the step was stopped")
            case -1:
                raise BadBatch("llama_decode refuses the batch")
            case _:
                # llama.h calls every code below -1 fatal, also -2, an allocation that failed. The step's jobs get no
                # error of their own, but the engine ends and is replaced.
                raise RuntimeError(f"llama_decode failed with code {code}")

    def request_abort(self) -> None:
        """Stop the running decode within a few graph nodes, and every later one until `forget_abort`; any thread.

        Without effect unless `can_abort`.
        """
        self._abort_flag[0] = b"\x01"

    def forget_abort(self) -> None:
        self._abort_flag[0] = b"\x00"

    def close(self) -> None:
        """Free the library's context. Idempotent; views of logits are dead from here on."""
        if self._handle is not None:
            capi.llama_free(self._handle)
            self._handle = None
            self._n_rows, self._rows = 0, _NO_ROWS

    @property
    def handle(self) -> int:
        """The library's handle, for this room only."""
        if self._handle is None:
            raise ValueError("the context is closed")
        return self._handle

    def _check_caller(self) -> None:
        """Raises: ValueError: the context is closed."""
        assert self.handle
        self._check_thread()

    def _check_thread(self) -> None:
        self._owner = self._owner or threading.get_ident()
        assert self._owner == threading.get_ident(), "a context belongs to the thread of its first decode"
