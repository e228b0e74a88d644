"""KV cells copied out of a context into host memory, to be written back into it later.

Owns the copy: one array, laid out as the library wants it back. Pure of calls; kv.py makes and reads them. One
thread at a time.
"""

import mmap
from collections.abc import Sequence as Seq
from contextlib import suppress
from typing import Self

import numpy as np

from worker.llama.seq_state import ORDINARY, Bytes, Layout, SeqState, joined, parse_seq_state

_LEAST_MAPPED_BYTES, _LEAST_HUGE_BYTES = 2**17, 2**22
"""As malloc and numpy have it. Linux allows a process 65,530 mappings: 8 GiB of the least."""


class SavedCells:
    """The engine's Saved (backend.py): the cells of positions [start, start + n_tokens)."""

    def __init__(self, pieces: Seq[Bytes], layout: Layout = ORDINARY) -> None:
        """`pieces`: states of at least one cell, one behind the other; a single one is the copy's own from now on.

        Raises: ValueError: they are none.
        """
        states = [parse_seq_state(piece, layout) for piece in pieces]
        in_order = [state.in_order() for state in states]
        if len(pieces) == 1 and in_order[0] is states[0]:
            self._data, self.state = pieces[0], states[0]
        else:
            self._data = joined(in_order, lasting)
            self.state = parse_seq_state(self._data, layout)
        self._layout = layout

    state: SeqState
    """For this room only: views of the copy."""

    @property
    def start(self) -> int:
        return self.state.start

    @property
    def n_tokens(self) -> int:
        return self.state.n_cells

    @property
    def n_bytes(self) -> int:
        return self._data.nbytes

    def split(self, n_tokens: int) -> tuple[Self, Self]:
        """As Saved.split. Raises: ValueError for a number out of range."""
        if not 0 < n_tokens < self.n_tokens:
            raise ValueError(f"{self.n_tokens} saved cells cannot be split after {n_tokens}")
        return self._part(0, n_tokens), self._part(n_tokens, self.n_tokens)

    def _part(self, begin: int, end: int) -> Self:
        return type(self)([joined([self.state.cut(begin, end)], lasting)], self._layout)


def chained(parts: Seq[SavedCells], n_tokens: int) -> Bytes:
    """One state of positions [0, n_tokens), copied from parts that follow each other; n_tokens > 0.

    Raises: ValueError where they do not begin at 0, have gaps, or hold fewer.
    """
    states: list[SeqState] = []
    n_found = 0
    for part in parts:
        if part.start != n_found:
            raise ValueError(f"saved cells from position {part.start} on do not follow {n_found} others")
        states.append(part.state.cut(0, n_tokens - n_found))
        n_found += states[-1].n_cells
        if n_found == n_tokens:
            return joined(states, passing)
    raise ValueError(f"{n_tokens} cells are asked for; the saved ones are {n_found}")


# ── where copies lie ──────────────────────────────────────────────────────────────────────────────


def passing(n_bytes: int) -> Bytes:
    """Room for a copy that is dropped at once."""
    return np.empty(n_bytes, np.uint8)


def lasting(n_bytes: int) -> Bytes:
    """Room for a copy that stays: a mapping of its own, which goes back to the system whole.

    Copies of all sizes that come and go in malloc's heap leave holes between them, a sixth of what they take.
    """
    if n_bytes < _LEAST_MAPPED_BYTES:
        return passing(n_bytes)
    try:
        room = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # no mapping more; the heap may have room
        return passing(n_bytes)
    if n_bytes >= _LEAST_HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, np.uint8)
