"""The front's memory gives back exactly what was put there, or nothing, whatever became of the engine between."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.server.front.children import shared_memory
from worker.server.saved.arena import N_ROWS, NOTE_BYTES, Arena, Room

ROW_BYTES = 24
SIZE = 2**24


@pytest.fixture
def fd() -> Iterator[int]:
    with shared_memory() as fd:
        yield fd


@settings(max_examples=30)
@given(
    orders=st.lists(st.tuples(st.sampled_from(("store", "free", "reopen", "mark")), st.integers(0, 2**16)), max_size=30)
)
def test_in_any_order_entries_are_as_they_were_put_and_what_is_free_is_used_again(
    orders: list[tuple[str, int]],
) -> None:
    with shared_memory() as fd:
        arena, kept = Arena(fd, SIZE), dict[Room, bytes]()
        marked: set[Room] = set()
        n_most = 0
        for number, (order, size) in enumerate(orders):
            match order:
                case "store":
                    data = bytes([number + 1]) * (size + 1)
                    room = arena.store([data[:7], data[7:]])
                    assert room is not None
                    kept[room] = data
                case "free" if kept:
                    room = list(kept)[size % len(kept)]
                    del kept[room]
                    marked.discard(room)
                    arena.free(room)
                case "mark" if kept:
                    room = list(kept)[size % len(kept)]
                    arena.mark(room, is_in_use=room not in marked)
                    marked ^= {room}
                case "reopen":
                    arena = Arena(fd, SIZE)
                    assert dict(arena.found) == {room: room in marked for room in kept}
            n_most = max(n_most, sum(len(data) for data in kept.values()))
            for room, data in kept.items():
                assert arena.view(room).tobytes() == data
        for room in kept:
            arena.free(room)
        whole = arena.store([bytes(SIZE)])
        assert whole is not None, "nothing of it is lost"


def test_an_entry_whose_row_was_never_written_is_not_there(fd: int) -> None:
    """The engine dies between the bytes and the row, or in the middle of the bytes."""
    room = Arena(fd, SIZE).store([b"x" * 5000])
    assert room is not None
    os.pwrite(fd, bytes(ROW_BYTES), NOTE_BYTES + room.row * ROW_BYTES)
    arena = Arena(fd, SIZE)
    assert arena.found == []
    assert arena.store([b"y"]) == Room(room.row, room.offset, 1)


@pytest.mark.parametrize(
    "row",
    [(2**63, 1, 0), (2**23 + 1, 1, 0), (2**23, 2**40, 0), (0, 100, 0), (2**23, 2**64 - 1, 7)],
    ids=["beyond", "crooked", "too long", "over the rows", "huge"],
)
def test_rows_that_make_no_sense_are_cleared_and_harm_no_other(fd: int, row: tuple[int, int, int]) -> None:
    arena = Arena(fd, SIZE)
    rooms = [arena.store([bytes([i]) * 9000]) for i in range(3)]
    os.pwrite(fd, b"".join(number.to_bytes(8, "little") for number in row), NOTE_BYTES + (N_ROWS - 1) * ROW_BYTES)
    for _ in range(2):
        assert [room for room, _ in Arena(fd, SIZE).found] == rooms


def test_rows_that_overlap_belong_to_the_first(fd: int) -> None:
    arena = Arena(fd, SIZE)
    room = arena.store([b"a" * 40_000])
    assert room is not None
    overlapping = (room.offset + 2**12).to_bytes(8, "little") + (100).to_bytes(8, "little") + bytes(8)
    os.pwrite(fd, overlapping, NOTE_BYTES + (N_ROWS - 1) * ROW_BYTES)
    assert [found for found, _ in Arena(fd, SIZE).found] == [room]


@pytest.mark.skipif(sys.platform != "linux", reason="holes in the file are Linux'")
def test_memory_of_what_is_freed_goes_back(fd: int) -> None:
    arena = Arena(fd, SIZE)
    rooms = [arena.store([bytes([1]) * 2**20]) for _ in range(8)]
    n_before = os.fstat(fd).st_blocks * 512
    assert n_before >= 8 * 2**20
    for room in rooms[:-1]:
        assert room is not None
        arena.free(room)
    assert os.fstat(fd).st_blocks * 512 <= n_before - 7 * 2**20


def test_where_there_is_no_room_nothing_is_stored(fd: int) -> None:
    arena = Arena(fd, SIZE)
    assert arena.store([bytes(SIZE + 2**16)]) is None
    room = arena.store([bytes(SIZE)])
    assert room is not None
    assert arena.store([b"x"]) is None
    arena.free(room)
    assert arena.store([b"x"]) is not None


def test_a_file_that_cannot_be_written_is_a_full_one(fd: int) -> None:
    Arena(fd, SIZE)
    with Path(f"/dev/fd/{fd}").open("rb") as readable:
        assert Arena(readable.fileno(), SIZE).store([b"x" * 5000]) is None


def test_the_note_is_what_was_noted(fd: int) -> None:
    assert Arena(fd, SIZE).note == bytes(NOTE_BYTES)
    Arena(fd, SIZE).note = b"a file's digest"
    assert Arena(fd, SIZE).note.rstrip(b"\0") == b"a file's digest"
