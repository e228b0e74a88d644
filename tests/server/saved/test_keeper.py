"""An engine finds what an earlier one kept, but nothing that it cannot trust or that crashed an engine."""

import gc
import os
import queue
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.server.saved.test_copies import state_of
from worker.engine.backend import Found
from worker.models.upstream.numbers import STATE_MAGIC
from worker.server.front.children import shared_memory
from worker.server.saved.arena import Arena
from worker.server.saved.copies import ORDINARY, SavedCells, SavedCheckpoint, chained
from worker.server.saved.directory import key_path, prepare_directory
from worker.server.saved.keeper import Keeper, Keeping
from worker.server.saved.records import record_of
from worker.wire.jobs import TokenId

PATIENCE_S = 60.0
TOKENS = [TokenId(token) for token in (9, 8, 7, 6, 5, 4)]


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    """A keeper's job without a directory."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    with shared_memory() as fd:
        yield Keeping(fd, None, 10_000, (model,), b"settings", ORDINARY)


@pytest.fixture
def lasting_keeping(keeping: Keeping, tmp_path: Path) -> Keeping:
    prepare_directory(tmp_path / "cache")
    return replace(keeping, directory=tmp_path / "cache")


def begun(keeping: Keeping) -> tuple[Keeper, Found]:
    keeper, found = Keeper(keeping), queue.SimpleQueue[Found]()
    keeper.find(found.put)
    return keeper, found.get(timeout=PATIENCE_S)


def copy_of(keeper: Keeper, begin: int, end: int) -> SavedCells:
    state = state_of(list(range(begin, end)), is_transposed=True).copy()
    saved = SavedCells([state], ORDINARY, TOKENS[:end], keeper.take)
    keeper.take(saved)
    return saved


def kept(keeping: Keeping) -> tuple[Keeper, list[SavedCells]]:
    """A keeper that has cells [0, 4) and [4, 6)."""
    keeper, found = begun(keeping)
    assert found == Found((), 0, None)
    copies = [copy_of(keeper, 0, 4), copy_of(keeper, 4, 6)]
    keeper.flush(PATIENCE_S)
    return keeper, copies


def saved_in(found: Found) -> list[SavedCells]:
    return [part for _, part in found.parts if isinstance(part, SavedCells)]


def tokens_in(found: Found) -> list[list[TokenId]]:
    return [tokens for tokens, _ in found.parts]


def files_of(keeping: Keeping) -> list[Path]:
    assert keeping.directory is not None
    return sorted(keeping.directory.glob("*.kv"))


def in_a_new_worker(keeping: Keeping) -> Iterator[Keeping]:
    with shared_memory() as fd:
        yield replace(keeping, arena_fd=fd)


EXPECTED = state_of(list(range(6)), is_transposed=True).tobytes()


def test_the_next_engine_and_the_next_worker_have_the_same_bytes_for_the_same_tokens(lasting_keeping: Keeping) -> None:
    _, copies = kept(lasting_keeping)
    assert chained(copies, 6).tobytes() == EXPECTED, "after they have moved, too"
    for keeping in chain([lasting_keeping], in_a_new_worker(lasting_keeping)):
        _, found = begun(keeping)
        assert (tokens_in(found), found.n_dropped) == ([TOKENS[:4], TOKENS], 0)
        assert chained(saved_in(found), 6).tobytes() == EXPECTED
        assert len(Arena(keeping.arena_fd).found) == 2, "its engines have them in its memory"


def test_halves_are_kept_in_place_of_the_whole(lasting_keeping: Keeping) -> None:
    keeper, copies = kept(lasting_keeping)
    halves = copies.pop(0).split(1)
    gc.collect()
    keeper.flush(PATIENCE_S)
    keeper.flush(PATIENCE_S)
    assert len(files_of(lasting_keeping)) == 3
    _, found = begun(lasting_keeping)
    assert tokens_in(found) == [TOKENS[:1], TOKENS[:4], TOKENS]
    assert chained(saved_in(found), 6).tobytes() == EXPECTED
    del halves


def test_a_copy_without_a_user_is_not_kept_either(lasting_keeping: Keeping) -> None:
    keeper, copies = kept(lasting_keeping)
    copies.clear()
    gc.collect()
    keeper.flush(PATIENCE_S)
    assert files_of(lasting_keeping) == []
    assert begun(lasting_keeping)[1] == Found((), 0, None)


def test_what_crashed_an_engine_is_dropped_with_its_file(lasting_keeping: Keeping) -> None:
    keeper, copies = kept(lasting_keeping)
    keeper.mark(copies, is_in_use=True)
    keeper.mark(copies[:1], is_in_use=False)
    _, found = begun(lasting_keeping)
    assert tokens_in(found) == [TOKENS[:4]]
    assert (found.n_dropped, found.dropped_because) == (1, "the previous engine crashed while loading it")
    for keeping in in_a_new_worker(lasting_keeping):
        assert tokens_in(begun(keeping)[1]) == [TOKENS[:4]]


def test_memory_that_a_crashing_engine_has_spoilt_is_not_trusted(keeping: Keeping) -> None:
    _, _copies = kept(keeping)
    (room, _), _ = Arena(keeping.arena_fd).found
    os.pwrite(keeping.arena_fd, b"\x55", room.offset + room.n_bytes // 2)
    _, found = begun(keeping)
    assert (len(found.parts), found.n_dropped) == (1, 1)
    assert "its authentication code is wrong" in (found.dropped_because or "")
    assert begun(keeping)[1].n_dropped == 0, "it is gone"


@pytest.mark.parametrize("change", ["facts", "model"])
def test_other_settings_or_another_model_find_nothing(lasting_keeping: Keeping, change: str) -> None:
    """Files of others are left to them."""
    _, _copies = kept(lasting_keeping)
    files = files_of(lasting_keeping)
    for keeping in in_a_new_worker(lasting_keeping):
        if change == "model":
            keeping.model_paths[0].write_bytes(b"Weights")
        other = replace(keeping, facts=b"others") if change == "facts" else keeping
        assert begun(other)[1] == Found((), 0, None)
    assert files_of(lasting_keeping) == files


SPOILT: dict[str, Callable[[bytes, bytes], bytes]] = {
    "damaged": lambda data, _: data[:99] + bytes([data[99] ^ 1]) + data[100:],
    "cut": lambda data, _: data[:-1],
    "empty": lambda *_: b"",
    "another's": lambda _, other: other,
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_is_not_as_it_was_written_is_removed(lasting_keeping: Keeping, how: str) -> None:
    _, _copies = kept(lasting_keeping)
    path, other = files_of(lasting_keeping)
    path.write_bytes(SPOILT[how](path.read_bytes(), other.read_bytes()))
    for keeping in in_a_new_worker(lasting_keeping):
        _, found = begun(keeping)
        assert (len(found.parts), found.n_dropped) == (1, 1)
        assert (found.dropped_because or "").startswith(path.name)
        assert not path.exists()


def test_files_of_another_key_are_removed(lasting_keeping: Keeping) -> None:
    _, _copies = kept(lasting_keeping)
    assert lasting_keeping.directory is not None
    key_path(lasting_keeping.directory).write_bytes(b"k" * 32)
    for keeping in in_a_new_worker(lasting_keeping):
        assert begun(keeping)[1].n_dropped == 2
    assert files_of(lasting_keeping) == []


def test_a_directory_that_has_gone_is_one_warning_and_the_engine_goes_on(
    lasting_keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, copies = kept(lasting_keeping)
    assert lasting_keeping.directory is not None
    for path in lasting_keeping.directory.iterdir():
        path.unlink()
    copies += [copy_of(keeper, 2, 3), copy_of(keeper, 3, 4)]
    keeper.flush(PATIENCE_S)
    assert caplog.text.count("--prefix-cache-dir: a file could not be written") == 1
    assert len(Arena(lasting_keeping.arena_fd).found) == 4


def test_a_record_whose_cells_are_not_of_its_last_tokens_is_not_trusted(keeping: Keeping) -> None:
    keeper, _ = begun(keeping)
    saved = SavedCells([state_of([3, 4], is_transposed=False).copy()], ORDINARY, TOKENS, keeper.take)
    keeper.take(saved)
    keeper.flush(PATIENCE_S)
    _, found = begun(keeping)
    assert (found.parts, found.n_dropped) == ((), 1)
    assert "are not the last of 6" in (found.dropped_because or "")


def test_so_is_a_state_that_the_library_would_not_have_written(keeping: Keeping) -> None:
    """The code is right, as if a former version of ours had made it."""
    _, _copies = kept(keeping)
    arena = Arena(keeping.arena_fd)
    binding = arena.view(arena.found[0][0])[8:40].tobytes()
    for room, _ in arena.found:
        arena.free(room)
    state = bytearray(state_of([0, 1], is_transposed=False).tobytes())
    struct.pack_into("<I", state, 12, 2**31)
    assert arena.store(record_of(TOKENS[:2], bytes(state), key=b"", binding=binding)) is not None
    _, found = begun(keeping)
    assert (found.parts, found.n_dropped) == ((), 1)
    assert "the saved state ends at byte" in (found.dropped_because or "")


def recurrent_state(n_tokens: int, n_numbers: int = 9) -> NDArray[np.uint8]:
    """A state after so many tokens, in the form of the library: one tensor of one layer."""
    head = struct.pack("<IiIiIIIiQ", STATE_MAGIC, 0, 1, n_tokens - 1, 0, 0, 1, 0, 4 * n_numbers)
    return np.frombuffer(head + np.arange(n_numbers, dtype="<f4").tobytes(), np.uint8)


WITH_STATE = replace(ORDINARY, n_state_bytes=len(recurrent_state(1)))


def checkpoint_of(keeper: Keeper, n_tokens: int, tokens: list[TokenId]) -> SavedCheckpoint:
    saved = SavedCheckpoint(recurrent_state(n_tokens), WITH_STATE, tokens)
    keeper.take(saved)
    return saved


def test_states_are_found_after_the_cells_before_them_the_shortest_first(lasting_keeping: Keeping) -> None:
    keeping = replace(lasting_keeping, layout=WITH_STATE)
    keeper, _ = begun(keeping)
    copies = [checkpoint_of(keeper, 6, TOKENS), copy_of(keeper, 0, 4), copy_of(keeper, 4, 6)]
    copies += [checkpoint_of(keeper, 4, TOKENS[:4])]
    keeper.flush(PATIENCE_S)
    for each in chain([keeping], in_a_new_worker(keeping)):
        _, found = begun(each)
        assert tokens_in(found) == [TOKENS[:4], TOKENS]
        assert [tokens for tokens, _ in found.checkpoints] == [TOKENS[:4], TOKENS]
        states = [state for _, state in found.checkpoints if isinstance(state, SavedCheckpoint)]
        assert [bytes(state.items) for state in states] == [recurrent_state(4).tobytes(), recurrent_state(6).tobytes()]


def test_a_state_without_cells_comes_with_their_places(keeping: Keeping) -> None:
    keeping = replace(keeping, layout=replace(WITH_STATE, n_caches=0))
    keeper, _ = begun(keeping)
    _saved = checkpoint_of(keeper, 6, TOKENS)
    keeper.flush(PATIENCE_S)
    _, found = begun(keeping)
    assert [(tokens, part.n_tokens) for tokens, part in found.parts] == [(TOKENS, 6)]
    assert [tokens for tokens, _ in found.checkpoints] == [TOKENS]


def test_a_state_of_other_tokens_or_another_size_is_not_trusted(keeping: Keeping) -> None:
    keeping = replace(keeping, layout=WITH_STATE)
    keeper, _ = begun(keeping)
    _kept_here = [checkpoint_of(keeper, 5, TOKENS)]
    keeper.flush(PATIENCE_S)
    _, found = begun(keeping)
    assert (found.checkpoints, found.n_dropped) == ((), 1)
    assert "the state after 5 tokens, not after 6" in (found.dropped_because or "")
    with pytest.raises(ValueError, match="of this model's there are"):
        SavedCheckpoint(recurrent_state(5, n_numbers=8), WITH_STATE)
    with pytest.raises(ValueError, match="has no recurrent state"):
        SavedCheckpoint(recurrent_state(5), ORDINARY)
    spoilt = recurrent_state(5).copy()
    spoilt[8] = 2
    with pytest.raises(ValueError, match="not the saved recurrent state of one sequence"):
        SavedCheckpoint(spoilt, WITH_STATE)


def test_a_state_that_crashed_an_engine_is_dropped(keeping: Keeping) -> None:
    keeping = replace(keeping, layout=WITH_STATE)
    keeper, _ = begun(keeping)
    saved = checkpoint_of(keeper, 6, TOKENS)
    keeper.flush(PATIENCE_S)
    keeper.mark([saved], is_in_use=True)
    _, found = begun(keeping)
    assert (found.checkpoints, found.dropped_because) == ((), "the previous engine crashed while loading it")
