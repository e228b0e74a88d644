"""Memory that the front owns and each of its engines maps: entries that an engine stores there outlive it.

An engine that dies may have been writing here, so readers check what an entry says (records.py). One process at a time;
`mark` may be called on another thread than the rest.

    [0, 128)     a note
    [128, …)     N_ROWS × (offset u64 · n_bytes u64 · is_in_use u64)
    [_BEGIN, …)  entries, each from a page's beginning

Entries are written with pwrite and mapped read-only: so a full disk, where the memory is a file, is an error and not a
signal, and a stray pointer cannot reach them. An entry's row is written last. What is freed goes back to the system
where that can make holes in a file (Linux), and is used again everywhere.
"""

import mmap
import os
import struct
import weakref
from bisect import insort
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from worker.server.saved.records import Buffer

Bytes = NDArray[np.uint8]

N_ROWS = 2**14
"""The most entries that there can be."""

NOTE_BYTES = 128

_ROW = struct.Struct("<QQQ")
_GRAIN = mmap.ALLOCATIONGRANULARITY
_BEGIN = -(-(NOTE_BYTES + N_ROWS * _ROW.size) // _GRAIN) * _GRAIN
_FREE = bytes(_ROW.size)


@dataclass(frozen=True, slots=True)
class Room:
    row: int
    offset: int
    n_bytes: int


class Extents:
    """The parts of [begin, end) that are taken. The lowest free part that is large enough is taken first."""

    def __init__(self, begin: int, end: int) -> None:
        self._taken = [(begin, begin), (end, end)]
        """(start, end) of each, ascending, between two empty ones."""

    def take(self, n: int) -> int | None:
        """The start of a free part of n > 0, which is taken from now on; None where no free part is so long."""
        for (_, start), (end, _) in pairwise(self._taken):
            if end - start >= n:
                insort(self._taken, (start, start + n))
                return start
        return None

    def take_at(self, start: int, n: int) -> bool:
        """Take [start, start + n), which must lie behind all that was taken before; False where it does not."""
        if not self._taken[-2][1] <= start <= start + n <= self._taken[-1][0]:
            return False
        self._taken.insert(-1, (start, start + n))
        return True

    def give(self, start: int, n: int) -> None:
        self._taken.remove((start, start + n))


class Arena:
    """The memory behind a file descriptor, which stays its owner's: room for entries of `n_bytes` together, or of what
    an engine before this one has made of it. `found`: that one's entries, and whether each was in use when it died.
    """

    def __init__(self, fd: int, n_bytes: int = 0) -> None:
        """Raises: OSError where there is no address space for it."""
        n_file_bytes = os.fstat(fd).st_size
        if n_file_bytes < _BEGIN + n_bytes:
            n_file_bytes = _whole(_BEGIN + n_bytes)
            os.ftruncate(fd, n_file_bytes)
        # A duplicate of our own: threads that still use this one never write into what took the number after it.
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd)
        self._whole = np.frombuffer(mmap.mmap(fd, n_file_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ), np.uint8)
        self._extents = Extents(_BEGIN, n_file_bytes)
        self.found = list(self._read_rows())
        taken = {room.row for room, _ in self.found}
        self._free_rows = [row for row in reversed(range(N_ROWS)) if row not in taken]

    def _read_rows(self) -> Iterator[tuple[Room, bool]]:
        """Yield the entries that rows speak of, and clear rows that cannot be true."""
        table = os.pread(self._fd, N_ROWS * _ROW.size, NOTE_BYTES)
        rows = [(*numbers, row) for row, numbers in enumerate(_ROW.iter_unpack(table)) if any(numbers)]
        for offset, n_bytes, was_in_use, row in sorted(rows):
            if n_bytes and offset % _GRAIN == 0 and self._extents.take_at(offset, _whole(n_bytes)):
                yield Room(row, offset, n_bytes), bool(was_in_use)
            else:
                os.pwrite(self._fd, _FREE, self._at(row))

    def store(self, parts: Seq[Buffer]) -> Room | None:
        """Put an entry's bytes there; complete once this returns. None where there is no room for it."""
        n_bytes = sum(map(len, parts))
        if not self._free_rows or (offset := self._extents.take(_whole(n_bytes))) is None:
            return None
        room = Room(self._free_rows.pop(), offset, n_bytes)
        try:
            for part in parts:
                left = memoryview(part)
                while left:
                    n_written = os.pwrite(self._fd, left, offset)
                    left, offset = left[n_written:], offset + n_written
            os.pwrite(self._fd, _ROW.pack(room.offset, n_bytes, 0), self._at(room.row))
        except OSError:
            self.free(room)
            return None
        return room

    def view(self, room: Room) -> Bytes:
        """The entry's bytes, until it is freed."""
        return self._whole[room.offset : room.offset + room.n_bytes]

    def mark(self, room: Room, *, is_in_use: bool) -> None:
        """Note for a successor that the entry is being used, or is no longer."""
        os.pwrite(self._fd, _ROW.pack(room.offset, room.n_bytes, is_in_use), self._at(room.row))

    def free(self, room: Room) -> None:
        """Free the entry, which is not read any more; its memory goes back where the system can make holes."""
        with suppress(OSError):
            os.pwrite(self._fd, _FREE, self._at(room.row))
        if hasattr(mmap, "MADV_REMOVE"):
            with (
                suppress(OSError),  # it cannot with this file
                mmap.mmap(self._fd, room.n_bytes, flags=mmap.MAP_SHARED, offset=room.offset) as pages,
            ):
                pages.madvise(mmap.MADV_REMOVE)
        self._extents.give(room.offset, _whole(room.n_bytes))
        self._free_rows.append(room.row)

    @property
    def note(self) -> bytes:
        """The note of an earlier process; zeros if there is none."""
        return os.pread(self._fd, NOTE_BYTES, 0).ljust(NOTE_BYTES, b"\0")

    @note.setter
    def note(self, note: bytes) -> None:
        os.pwrite(self._fd, note.ljust(NOTE_BYTES, b"\0"), 0)

    def _at(self, row: int) -> int:
        return NOTE_BYTES + row * _ROW.size


def _whole(n_bytes: int) -> int:
    return -(-n_bytes // _GRAIN) * _GRAIN
