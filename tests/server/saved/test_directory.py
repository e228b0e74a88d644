"""A directory that is not its owner's alone is refused before anything runs, with what to do about it."""

import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.errors import UsageError
from worker.server.saved.directory import KEY_BYTES, CacheFiles, key_path, prepare_directory, read_key


def test_the_directory_and_its_key_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    prepare_directory(folder)
    key = read_key(folder)
    assert len(key) == KEY_BYTES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(key_path(folder).stat().st_mode) == 0o600
    prepare_directory(folder)
    assert read_key(folder) == key
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_of_workers_that_begin_at_once_all_have_the_same_key(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def begin(_: int) -> bytes:
        start.wait()
        prepare_directory(tmp_path)
        return read_key(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        assert len({*pool.map(begin, range(8))}) == 1


def spoil(folder: Path, how: str) -> None:
    if how.startswith("key"):
        prepare_directory(folder)
    match how:
        case "file":
            folder.touch()
        case "below a file":
            folder.parent.rmdir()
            folder.parent.touch()
        case "everybody's":
            folder.mkdir()
            folder.chmod(0o777)
        case "key is short":
            key_path(folder).write_bytes(b"short")
        case "key is open":
            key_path(folder).chmod(0o644)
        case "key is a link":
            key_path(folder).rename(folder.parent / "elsewhere")
            key_path(folder).symlink_to(folder.parent / "elsewhere")
        case "key is a pipe":
            key_path(folder).unlink()
            os.mkfifo(key_path(folder), 0o600)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("file", "cannot be used: .*File exists"),
        ("below a file", "cannot be used: .*Not a directory"),
        ("everybody's", "is writable by every user: chmod o-w"),
        ("key is short", "is not a key of 32 bytes: remove it"),
        ("key is open", "must belong to its owner alone: chmod 600"),
        ("key is a link", "cannot be used: .*key: "),
        ("key is a pipe", "is not a key"),
    ],
)
def test_what_is_wrong_is_said_with_the_flag_and_a_way_out(tmp_path: Path, how: str, words: str) -> None:
    folder = tmp_path / "parent" / "cache"
    folder.parent.mkdir()
    spoil(folder, how)
    with pytest.raises(UsageError, match=f"^--prefix-cache-dir {folder}.*{words}"):
        prepare_directory(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match=r"cannot be used: .*Permission denied"):
        prepare_directory(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(UsageError, match="belongs to user 12345, not to 0: give a directory of your own"):
        prepare_directory(tmp_path)


OURS, OTHERS = b"a" * 32, b"b" * 32
LIMIT = 1000


def made(folder: Path, binding: bytes = OURS, limit_bytes: int = LIMIT) -> CacheFiles:
    prepare_directory(folder)
    return CacheFiles(folder, binding, limit_bytes)


def n_bytes(folder: Path, ending: str = "kv*") -> int:
    """While files come and go, each is counted while it is there."""
    try:
        return sum(path.stat().st_size for path in folder.glob(f"*.{ending}"))
    except FileNotFoundError:
        return 0


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
    start = threading.Barrier(2)

    def write(files: CacheFiles) -> None:
        start.wait()
        for number in range(40):
            files.write(files.name(bytes([number]) * 32), bytes(600))

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, files) for files in (made(tmp_path), made(tmp_path, OTHERS))]
        while not all(one.done() for one in writing):
            assert n_bytes(tmp_path, "kv") <= LIMIT
            time.sleep(0)
    assert len(list(tmp_path.glob("*.kv"))) == 1
