"""Files hold at most the bound, and give exactly the bytes that were written, or nothing."""

import os
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.server.saved.directory import CacheFiles, prepare_directory

OURS, OTHERS = b"a" * 32, b"b" * 32
LIMIT = 1000


def made(folder: Path, binding: bytes = OURS, limit_bytes: int = LIMIT) -> CacheFiles:
    prepare_directory(folder)
    return CacheFiles(folder, binding, limit_bytes)


def n_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.kv*"))


ORDERS = st.lists(
    st.tuples(st.sampled_from(("write", "remove", "reopen")), st.sampled_from((0, 1)), st.integers(0, 1200)),
    max_size=25,
)


@settings(max_examples=30)
@given(orders=ORDERS)
def test_in_any_order_the_bound_holds_and_what_is_read_is_what_was_written(orders: list[tuple[str, int, int]]) -> None:
    """Two workers with different models write into one directory."""
    with TemporaryDirectory() as folder:
        both = [made(Path(folder), binding) for binding in (OURS, OTHERS)]
        written: list[dict[str, bytes]] = [{}, {}]
        for number, (order, who, size) in enumerate(orders):
            files, name = both[who], both[who].name(bytes([number % 256]) * 32)
            if order == "write":
                data = bytes([number % 256]) * size
                files.write(name, data)
                written[who][name] = data
                assert (name in files.names()) is (size <= LIMIT)
            elif order == "remove" and written[who]:
                gone = list(written[who])[size % len(written[who])]
                files.remove(gone)
                del written[who][gone]
                assert gone not in files.names()
            else:
                both[who] = made(Path(folder), (OURS, OTHERS)[who])
            assert n_bytes(Path(folder)) <= LIMIT
            for whose, known in zip(both, written, strict=True):
                for found in whose.names():
                    assert whose.read(found) == known[found]


def test_the_oldest_goes_first_regardless_of_its_writer(tmp_path: Path) -> None:
    ours, others = made(tmp_path), made(tmp_path, OTHERS)
    for age, (files, letter) in enumerate([(ours, b"1"), (others, b"2"), (ours, b"3")]):
        files.write(files.name(letter * 32), bytes(300))
        os.utime(tmp_path / files.name(letter * 32), ns=(0, age))
    others.write(others.name(b"4" * 32), bytes(300))
    assert ours.names() == [ours.name(b"3" * 32)]
    assert set(others.names()) == {others.name(letter * 32) for letter in (b"2", b"4")}


def test_what_is_not_ours_is_left_alone_and_what_a_dead_writer_left_is_not(tmp_path: Path) -> None:
    files = made(tmp_path)
    mine = tmp_path / "notes.txt"
    mine.write_bytes(bytes(5000))
    (tmp_path / files.name(b"l" * 32)).symlink_to(mine)
    os.mkfifo(tmp_path / files.name(b"p" * 32))
    unfinished = tmp_path / "x.kv-part"
    unfinished.write_bytes(b"half")
    files.write(files.name(b"n" * 32), bytes(LIMIT))
    assert files.names() == [files.name(b"n" * 32)]
    assert mine.stat().st_size == 5000
    assert not unfinished.exists()


def test_a_writer_waits_for_another_one(tmp_path: Path) -> None:
    """Both would find room for their own file only without the lock."""
    both = [made(tmp_path), made(tmp_path, OTHERS)]
    start = threading.Barrier(2)

    def write(files: CacheFiles) -> None:
        start.wait()
        for number in range(40):
            files.write(files.name(bytes([number]) * 32), bytes(600))

    writers = [threading.Thread(target=write, args=(files,)) for files in both]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert n_bytes_now(tmp_path) <= LIMIT
        time.sleep(0)
    assert len(list(tmp_path.glob("*.kv"))) == 1


def n_bytes_now(folder: Path) -> int:
    """While files come and go, each counted while it is there."""
    sizes = []
    for path in folder.glob("*.kv"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            return 0
    return sum(sizes)


def test_a_directory_that_has_gone_is_an_error_of_the_caller(tmp_path: Path) -> None:
    files = made(tmp_path / "gone")
    for path in (tmp_path / "gone").iterdir():
        path.unlink()
    (tmp_path / "gone").rmdir()
    with pytest.raises(OSError, match="No such file"):
        files.write(files.name(b"x" * 32), b"x")
