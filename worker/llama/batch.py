"""The input arrays of llama_decode, allocated once per context.

Owns the memory the llama_batch struct points at; its arguments have passed the context's gate. The step thread's.
"""

import ctypes
from collections.abc import Sequence as Seq
from itertools import accumulate, chain

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.engine.backend import Slice
from worker.llama.seq_ids import SeqIds
from worker.wire.messages import SlotId

_Int32s = ctypes.POINTER(ctypes.c_int32)


class Batch:
    """The arrays of one llama_batch, owned by numpy and filled in place; the struct only points at them.

    Not llama_batch_init: that allocates every seq_id apart, which cannot be filled in one go.
    """

    def __init__(self, n_batch: int, seq_ids: SeqIds) -> None:
        n_each = 1 + seq_ids.has_twins
        self._token = np.zeros(n_batch, dtype=np.int32)
        self._pos = np.zeros(n_batch, dtype=np.int32)
        self._n_seq_id = np.full(n_batch, n_each, dtype=np.int32)
        self._seq_id = np.zeros((n_batch, n_each), dtype=np.int32)
        self._twins_after = seq_ids.twin(0) if seq_ids.has_twins else 0
        """0: no token has a second seq_id."""
        self._logits = np.zeros(n_batch, dtype=np.int8)
        addresses = self._seq_id.ctypes.data + self._seq_id.strides[0] * np.arange(n_batch, dtype=np.uintp)
        self._seq_ids = np.append(addresses, np.uintp(0))
        self.struct = capi.llama_batch()
        self.struct.token = self._token.ctypes.data_as(_Int32s)
        self.struct.pos = self._pos.ctypes.data_as(_Int32s)
        self.struct.n_seq_id = self._n_seq_id.ctypes.data_as(_Int32s)
        self.struct.seq_id = self._seq_ids.ctypes.data_as(ctypes.POINTER(_Int32s))
        self.struct.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))

    def fill(self, slices: Seq[Slice]) -> list[int]:
        """Write checked slices; the batch indexes at which logits are asked for, ascending.

        Column by column, not slice by slice: each numpy call costs as much as the tokens of a decode step together.
        """
        tokens = [token for piece in slices for token in piece.tokens]
        n_tokens = len(tokens)
        self._token[:n_tokens] = tokens
        self.struct.n_tokens = n_tokens
        if n_tokens == len(slices):
            return self._fill_single(slices)
        lengths = [len(piece.tokens) for piece in slices]
        indexes = [
            index
            for piece, end in zip(slices, accumulate(lengths), strict=True)
            if piece.sampling is not None
            for index in range(end - 1 - piece.n_drafts, end)
        ]
        self._pos[:n_tokens] = list(chain.from_iterable(map(_positions, slices)))
        self._fill_seq_ids(np.repeat([piece.slot for piece in slices], lengths))
        self._logits[:n_tokens] = 0
        self._logits[indexes] = 1
        return indexes

    def pad(self, n_rows: int, slot: SlotId) -> None:
        """Go on with rows that nobody reads: a sequence of their own, of the first token. Their logits are asked for as
        an ordinary row's are, because the last layer computes only such rows.
        """
        begin = self.struct.n_tokens
        end = self.struct.n_tokens = begin + n_rows
        self._token[begin:end] = 0
        self._pos[begin:end] = range(n_rows)
        self._fill_seq_ids(np.full(n_rows, slot), begin)
        self._logits[begin:end] = 1

    def _fill_single(self, slices: Seq[Slice]) -> list[int]:
        """Slices of one token: an ordinary decode step."""
        n_tokens = len(slices)
        self._pos[:n_tokens] = [piece.start for piece in slices]
        self._fill_seq_ids(np.array([piece.slot for piece in slices]))
        self._logits[:n_tokens] = [piece.sampling is not None for piece in slices]
        return [index for index, piece in enumerate(slices) if piece.sampling is not None]

    def _fill_seq_ids(self, slots: NDArray[np.int_], begin: int = 0) -> None:
        """As they go on in kv.py."""
        end = begin + len(slots)
        self._seq_id[begin:end, 0] = slots
        if self._twins_after:
            self._seq_id[begin:end, 1] = slots + self._twins_after


def _positions(piece: Slice) -> range:
    return range(piece.start, piece.start + len(piece.tokens))
