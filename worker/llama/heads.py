"""A model's next-token head (MTP): a last layer that drafts the token after the next, in a context of its own.

The model's own context leaves the hidden rows of its tokens. The head's reads a token with the row of the token before
it; in a draft it reads its own rows. Where a row is missing it gets zeros: then the draft is worse, and no answer is
another one.
"""

import ctypes
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.engine.backend import HiddenRows, Meanwhile, do_nothing
from worker.engine.step import Slice
from worker.limits import MAX_HIDDEN_ROWS
from worker.llama.context import Context
from worker.llama.library import library_function
from worker.llama.model import Model
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.memory import HEAD_BATCH
from worker.models.upstream.architectures import HEADS_OF_PLAIN_POSITIONS, ROWS_OF_OUTPUTS_ALONE
from worker.models.upstream.numbers import GET_HIDDEN_ROWS, MROPE_TYPES, SET_HIDDEN_ROWS
from worker.wire.jobs import SlotId

Rows = NDArray[np.float32]
_Floats = ctypes.POINTER(ctypes.c_float)


_set_rows = library_function(SET_HIDDEN_ROWS, None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
"""(context, whether there are to be rows, whether only of tokens whose logits are asked for)"""
_get_rows = library_function(GET_HIDDEN_ROWS, ctypes.c_void_p, ctypes.c_void_p)
"""(context) → the address of the rows of the last decode."""


def positions_off(model: Model) -> str | None:
    """Return what the head's graph lacks for the model's positions, if anything."""
    is_several = capi.llama_model_rope_type(model.handle) in MROPE_TYPES
    if not is_several or model.architecture not in HEADS_OF_PLAIN_POSITIONS:
        return None
    return f"llama.cpp's graph of the head of {model.architecture} takes no positions of several numbers"


class StoredRows(HiddenRows):
    """The rows, of `length` numbers each."""

    def __init__(self, model: Model, n_slots: int) -> None:
        super().__init__()
        self.length = int(capi.llama_model_n_embd_out(model.handle))
        self._rows: Rows = np.zeros((n_slots, MAX_HIDDEN_ROWS, self.length), np.float32)
        """The row of a position lies at its remainder."""
        self.n_bytes = self._rows.nbytes

    def take(self, slot: SlotId, end: int, rows: Rows) -> None:
        """Keep the rows of the positions before `end`, which were computed now."""
        rows = rows[-MAX_HIDDEN_ROWS:]
        self._rows[slot, np.arange(end - len(rows), end) % MAX_HIDDEN_ROWS] = rows
        self.add(slot, end, len(rows))

    def of(self, slot: SlotId, position: int) -> Rows | None:
        """Return the row of a position, if it is kept."""
        return self._rows[slot, position % MAX_HIDDEN_ROWS] if self.has(slot, position) else None


class ModelContext(Context):
    """The context of a model whose head drafts. Its graph, and so its numbers, are those of a model without a head."""

    def __init__(self, model: Model, hidden: StoredRows, **sizes: Any) -> None:
        super().__init__(model, **sizes)
        self._hidden = hidden
        self._is_of_outputs = model.architecture in ROWS_OF_OUTPUTS_ALONE
        _set_rows(self.handle, True, self._is_of_outputs)
        self.kv.on_emptied = hidden.forget
        n_rows = self.n_outputs if self._is_of_outputs else self.n_batch
        self.sizes += _rows_in_main(4 * n_rows * hidden.length + hidden.n_bytes)

    def decode(self, slices: Seq[Slice], meanwhile: Meanwhile = do_nothing) -> list[int]:
        indexes = super().decode(slices, meanwhile)
        counts = [slice_.n_rows if self._is_of_outputs else len(slice_.tokens) for slice_ in slices]
        for slice_, rows in _rows_of(self.handle, slices, counts, self._hidden.length):
            self._hidden.take(slice_.slot, slice_.start + len(slice_.tokens), rows)
        return indexes


class HeadContext(Context):
    """The context of a model's head, with cells for its layer alone. A slot's cells are those of its last tokens: their
    positions begin with 0, wherever they are in the text."""

    _is_of_head = True

    def __init__(self, model: Model, hidden: StoredRows, *, n_ctx: int, n_slots: int, **sizes: Any) -> None:
        self._hidden = hidden
        self._drafted: dict[SlotId, tuple[int, Rows]] = {}
        """The last position that each slot has drafted after, and the head's own row of it."""
        self._none = np.zeros(hidden.length, np.float32)
        super().__init__(model, n_ctx=n_ctx, n_seq_max=n_slots, n_batch=HEAD_BATCH, n_ubatch=HEAD_BATCH, **sizes)
        _set_rows(self.handle, True, True)
        self.sizes += _rows_in_main(4 * self.n_outputs * hidden.length)
        self._tokens = capi.llama_batch_ext_init(self.handle)

    def decode(self, slices: Seq[Slice], meanwhile: Meanwhile = do_nothing) -> list[int]:
        indexes = super().decode(slices, meanwhile)
        counts = [slice_.n_rows for slice_ in slices]
        for slice_, rows in _rows_of(self.handle, slices, counts, self._hidden.length):
            last = self._hidden.firsts[slice_.slot] + slice_.start + len(slice_.tokens) - 1
            self._drafted[slice_.slot] = last, rows[-1].copy()
        return indexes

    def _fill(self, slices: Seq[Slice]) -> list[int]:
        capi.llama_batch_ext_clear(self._tokens)
        indexes: list[int] = []
        for slice_ in slices:
            first, n_silent = self._hidden.firsts[slice_.slot], len(slice_.tokens) - slice_.n_rows
            for i, token in enumerate(slice_.tokens):
                position = slice_.start + i
                index = capi.llama_batch_ext_add_token(self._tokens, slice_.slot, token)
                row = self._row_before(slice_.slot, first + position)
                embedding = capi.llama_embd(row.ctypes.data_as(_Floats), 1, len(row))
                capi.llama_batch_ext_set_embd_token(self._tokens, index, embedding)
                capi.llama_batch_ext_set_pos(self._tokens, index, ctypes.byref(ctypes.c_int32(position)))
                if i >= n_silent:
                    capi.llama_batch_ext_set_output_logits(self._tokens, index, True)
                    indexes.append(index)
        return indexes

    def _decode(self) -> int:
        return int(capi.llama_process(self.handle, capi.LLAMA_PROCESS_TYPE_DECODE, self._tokens))

    def _row_before(self, slot: SlotId, position: int) -> Rows:
        if (row := self._hidden.of(slot, position - 1)) is not None:
            return row
        last, own = self._drafted.get(slot, (-1, self._none))
        return own if last == position - 1 else self._none

    def close(self) -> None:
        if self._handle is not None and hasattr(self, "_tokens"):
            capi.llama_batch_ext_free(self._tokens)
        super().close()


def _rows_of(context: int, slices: Seq[Slice], counts: Seq[int], length: int) -> Iterator[tuple[Slice, Rows]]:
    """Yield the slices that have rows of a decode, each with `counts` of them, which are there until the next one."""
    address, n_rows = _get_rows(context), sum(counts)
    if address is None or not n_rows:
        return
    rows = np.ctypeslib.as_array(ctypes.cast(address, _Floats), shape=(n_rows, length))
    for slice_, count, end in zip(slices, counts, accumulate(counts), strict=True):
        if count:
            yield slice_, rows[end - count : end]


def _rows_in_main(n_bytes: int) -> BufferSizes:
    return BufferSizes((Buffer("CPU", "rows", n_bytes),))
