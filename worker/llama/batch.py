"""The input of llama_decode: slices cut into batches, and written into its arrays. The step thread's.

ggml computes a row of a matrix product with one kernel when it is alone, and with others among two, four or eight rows;
some of these round otherwise (docs/determinism.md). So groups of at most `most` rows are decoded one after the other,
and each is filled up to a multiple of `multiple` with rows that are not read; self_test.py finds the grouping.
"""

import ctypes
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from llama_cpp import llama_cpp as capi
from msgspec.structs import replace
from numpy.typing import NDArray

from worker.engine.step import Scoring, Slice
from worker.llama.held_width import HeldWidth
from worker.llama.seq_ids import SeqIds
from worker.wire.jobs import SlotId

_Int32s = ctypes.POINTER(ctypes.c_int32)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The default is llama.cpp's own way: a step as it comes."""

    multiple: int = 1
    most: int = 0
    """A multiple of `multiple`; 0: no limit."""
    padded: Mapping[int, int] = field(default_factory=dict)
    """The number of tokens that a batch of `n` is filled up to, because a wider one takes a GPU less time."""
    held: HeldWidth | None = field(default=None, compare=False)
    """The width that a GPU's decode steps keep for a while when jobs end, if there is one."""

    def n_padding(self, slices: Seq[Slice], n_spare_cells: int) -> int:
        """Return how many rows a batch lacks; 0 for any but an ordinary decode step, whose slices have a token each.
        Rows that only save time must find spare cells. Call it once for each batch, in their order."""
        if not self.padded and self.held is None:
            return -len(slices) % self.multiple if self.multiple > 1 and _is_decode(slices) else 0
        n_tokens = sum([len(slice_.tokens) for slice_ in slices])
        is_decode = n_tokens == len(slices)
        width = n_tokens if self.held is None or not is_decode else self.held.of(n_tokens)
        n_wanted = self.padded.get(width, width)
        has_cells = n_wanted <= n_spare_cells
        if self.held is not None and not (is_decode and has_cells):
            self.held.forget()
        return n_wanted - n_tokens if has_cells else 0

    def split(self, slices: Seq[Slice]) -> Iterator[Seq[Slice]]:
        """The groups of an ordinary decode step; any other as it is."""
        if not self.most or len(slices) <= self.most or not _is_decode(slices):
            yield slices
            return
        for begin in range(0, len(slices), self.most):
            yield slices[begin : begin + self.most]


def _is_decode(slices: Seq[Slice]) -> bool:
    return all(len(slice_.tokens) == 1 for slice_ in slices)


def batches(slices: Seq[Slice], n_batch: int) -> Iterator[Seq[Slice]]:
    """The slices in order, cut into batches of at most `n_batch` tokens; usually one, as it is. Only the last part of a
    slice draws, and has all its drafts; no batch has two parts of one slot."""
    if sum([len(slice_.tokens) for slice_ in slices]) <= n_batch:
        yield slices
        return
    batch: list[Slice] = []
    room = n_batch
    for slice_ in slices:
        for part in _parts(slice_, room, n_batch):
            if len(part.tokens) > room:
                yield batch
                batch, room = [], n_batch
            batch.append(part)
            room -= len(part.tokens)
    yield batch


def _parts(slice_: Slice, first: int, rest: int) -> Iterator[Slice]:
    """A slice in parts of at most `rest` tokens, the first of at most `first` (0: there is no such part). What draws
    stays together, though it were more."""
    n_before = len(slice_.tokens) - slice_.n_drafts - 1
    begin, end = 0, first or rest
    while end < len(slice_.tokens):
        end = min(end, n_before)
        if begin < end:
            cut = slice_.tokens[begin:end]
            scoring = _part(slice_.scoring, begin, end)
            yield replace(slice_, start=slice_.start + begin, tokens=cut, sampling=None, n_drafts=0, scoring=scoring)
        begin, end = end, end + max(rest, slice_.n_drafts + 1)
    scoring = _part(slice_.scoring, begin, len(slice_.tokens))
    yield replace(slice_, start=slice_.start + begin, tokens=slice_.tokens[begin:], scoring=scoring)


def _part(scoring: Scoring | None, begin: int, end: int) -> Scoring | None:
    return None if scoring is None else replace(scoring, targets=scoring.targets[begin:end])


class Batch:
    """The arrays of one llama_batch, owned by numpy and filled in place; the struct only points at them. Not
    llama_batch_init: that allocates every seq_id apart, which cannot be filled in one go."""

    def __init__(self, n_batch: int, seq_ids: SeqIds) -> None:
        n_each = 1 + seq_ids.has_twins
        self._token = np.zeros(n_batch, dtype=np.int32)
        self._pos = np.zeros(n_batch, dtype=np.int32)
        self._n_seq_id = np.full(n_batch, n_each, dtype=np.int32)
        self._seq_id = np.zeros((n_batch, n_each), dtype=np.int32)
        self._twins_after = seq_ids.twin(0) if seq_ids.has_twins else 0
        """0 where no token has a second seq_id."""
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
        """Write checked slices; the batch indexes at which logits are asked for, ascending. Column by column, not slice
        by slice: each numpy call costs as much as the tokens of a decode step together."""
        tokens = [token for slice_ in slices for token in slice_.tokens]
        n_tokens = len(tokens)
        self._token[:n_tokens] = tokens
        self.struct.n_tokens = n_tokens
        if n_tokens == len(slices):
            return self._fill_single(slices)
        lengths = [len(slice_.tokens) for slice_ in slices]
        indexes = [
            index
            for slice_, end in zip(slices, accumulate(lengths), strict=True)
            for index in range(end - slice_.n_rows, end)
        ]
        self._pos[:n_tokens] = [at for one in slices for at in range(one.start, one.start + len(one.tokens))]
        self._fill_seq_ids(np.repeat([slice_.slot for slice_ in slices], lengths))
        self._logits[:n_tokens] = 0
        self._logits[indexes] = 1
        return indexes

    def pad(self, n_rows: int, slot: SlotId) -> None:
        """Append rows that are not read: a sequence of their own, of the first token. Their logits are asked for as
        an ordinary row's are, because the last layer computes only such rows."""
        begin = self.struct.n_tokens
        end = self.struct.n_tokens = begin + n_rows
        self._token[begin:end] = 0
        self._pos[begin:end] = range(n_rows)
        self._fill_seq_ids(np.full(n_rows, slot), begin)
        self._logits[begin:end] = 1

    def _fill_single(self, slices: Seq[Slice]) -> list[int]:
        """Slices of one token: an ordinary decode step."""
        n_tokens = len(slices)
        self._pos[:n_tokens] = [slice_.start for slice_ in slices]
        self._fill_seq_ids(np.array([slice_.slot for slice_ in slices]))
        n_rows = [slice_.n_rows for slice_ in slices]
        self._logits[:n_tokens] = n_rows
        return [index for index, n in enumerate(n_rows) if n]

    def _fill_seq_ids(self, slots: NDArray[np.int_], begin: int = 0) -> None:
        """Write whose rows these are, with a twin for each seq_id where cells need one (kv.py)."""
        end = begin + len(slots)
        self._seq_id[begin:end, 0] = slots
        if self._twins_after:
            self._seq_id[begin:end, 1] = slots + self._twins_after
